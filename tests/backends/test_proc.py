"""What is read from /proc and /sys, of machines made of files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import madl
from madl import Pool

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host import proc

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for a machine with 8 GiB, 6 of them available."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {6 << 20} kB\n"
    )
    monkeypatch.setattr(proc, "_PROC", tmp_path)
    monkeypatch.setattr(proc, "_CGROUP", tmp_path / "cgroup")
    return tmp_path


def make_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_memory_info_without_cgroups(machine: Path) -> None:
    info = proc.memory_info()

    assert (info.total_nbytes, info.available_nbytes) == (8 * GIB, 6 * GIB)


def test_memory_info_within_cgroup_2(machine: Path) -> None:
    (machine / "self" / "cgroup").write_text("0::/outer/inner\n")
    make_group(
        machine / "cgroup" / "outer",
        memory__max=str(2 * GIB),
        memory__current=str(GIB),
        memory__stat=f"anon 5\ninactive_file {GIB // 2}",
    )
    make_group(machine / "cgroup" / "outer" / "inner", memory__max="max")

    info = proc.memory_info()

    assert (info.total_nbytes, info.available_nbytes) == (2 * GIB, 3 * GIB // 2)


def test_memory_info_within_cgroup_1(machine: Path) -> None:
    (machine / "self" / "cgroup").write_text("5:cpu,memory:/box\n4:pids:/\n0::/\n")
    make_group(
        machine / "cgroup" / "memory" / "box",
        memory__limit_in_bytes=str(GIB),
        memory__usage_in_bytes=str(3 * GIB // 4),
        memory__stat="total_inactive_file 0",
    )

    info = proc.memory_info()

    assert (info.total_nbytes, info.available_nbytes) == (GIB, GIB // 4)


def test_memory_info_where_the_container_is_the_root(machine: Path) -> None:
    (machine / "self" / "cgroup").write_text("0::/../../elsewhere\n")
    make_group(machine / "cgroup", memory__max=str(GIB), memory__current=str(2 * GIB))

    info = proc.memory_info()

    assert (info.total_nbytes, info.available_nbytes) == (GIB, 0)


def test_a_sandbox_without_proc_has_the_memory_that_sysconf_says(
    machine: Path,
) -> None:
    (machine / "meminfo").unlink()

    info = proc.memory_info()

    assert info.total_nbytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < info.available_nbytes <= info.total_nbytes


PROGRAM = """
import madl
for device in ("cpu", "shared"):
    with madl.Pool(device, limit="64 MiB") as pool:
        with pool.allocate("1 MiB") as memory:
            memory.fill(1)
        try:
            pool.allocate("1 GiB")
        except madl.OutOfMemoryError as error:
            assert "limit" in str(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hides folders of the system")
@pytest.mark.parametrize("folders", [("/proc",), ("/sys",), ("/proc", "/sys")])
def test_programs_run_where_folders_of_the_system_are_hidden(
    folders: tuple[str, ...], tmp_path: Path
) -> None:
    hide = " && ".join(f"mount --bind {tmp_path} {folder}" for folder in folders)
    command = ["unshare", "-m", "sh", "-c", f'{hide} && exec "$0" -c "$1"']

    done = subprocess.run(
        [*command, sys.executable, PROGRAM], capture_output=True, text=True, check=False
    )

    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this container hides nothing: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


UNREADABLE = [PermissionError, IsADirectoryError, FileNotFoundError, OSError]


@pytest.mark.parametrize("refusal", UNREADABLE)
def test_no_file_has_to_be_readable(
    refusal: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> str:
        if path.parts[1] in ("proc", "sys"):
            raise refusal(13, "refused", str(path))
        return read(path)

    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", refuse)

    with Pool("cpu", limit="64 MiB") as pool:
        pool.allocate("1 MiB").free()
        with pytest.raises(madl.OutOfMemoryError):
            pool.allocate("1 GiB")
    assert proc.settings() == {}
    with pytest.raises(madl.MissingCapabilityError):
        Pool("cpu", numa_node=10**6).allocate(100)
