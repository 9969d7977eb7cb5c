"""What is read from /proc and /sys, of machines made of files."""

import sys
from pathlib import Path

import pytest

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
