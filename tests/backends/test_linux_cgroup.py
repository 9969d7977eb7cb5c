"""A control group's limit of memory: what madl reads, and what the kernel does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from tests.backends.host import SOURCE_ROOT, TEST_ROOT

MIB = 1 << 20
LIMIT_NBYTES = 192 * MIB
ROOTS = {
    "memory.limit_in_bytes": Path("/sys/fs/cgroup/memory"),
    "memory.max": Path("/sys/fs/cgroup"),
}


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a control group with a limit, of either version."""
    for name, root in ROOTS.items():
        folder = root / f"madl-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / name).write_text(str(LIMIT_NBYTES))
        except OSError:
            folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no control group can be made that limits memory")


def run_inside(group: Path, code: str) -> subprocess.CompletedProcess[str]:
    enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
    return subprocess.run(
        [sys.executable, "-c", enter + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{SOURCE_ROOT}{os.pathsep}{TEST_ROOT}"},
    )


def test_the_groups_limit_is_the_devices_memory(group: Path) -> None:
    done = run_inside(
        group,
        "from madl.backends.cpu import CpuBackend\n"
        "print(*CpuBackend().memory_info())\n",
    )

    total, available = map(int, done.stdout.split())
    assert total == LIMIT_NBYTES
    assert 0 < available < LIMIT_NBYTES


def test_a_pool_with_a_limit_below_the_groups_is_refused_and_lives(
    group: Path,
) -> None:
    done = run_inside(
        group,
        "import ctypes, madl\n"
        "pool, live = madl.Pool('cpu', limit='96 MiB'), []\n"
        "try:\n"
        "    while True:\n"
        "        live.append(pool.allocate('8 MiB'))\n"
        "        ctypes.memset(live[-1].address, 1, live[-1].nbytes)\n"
        "except madl.OutOfMemoryError:\n"
        "    pool.check()\n"
        "print(len(live))\n",
    )

    assert (done.returncode, done.stdout.strip()) == (0, "12")


def test_without_one_the_kernel_ends_the_process_and_madl_cannot_know(
    group: Path,
) -> None:
    done = run_inside(
        group,
        "import ctypes, madl\n"
        "pool, live = madl.Pool('cpu'), []\n"
        "for _ in range(64):\n"
        "    live.append(pool.allocate('8 MiB'))\n"
        "    ctypes.memset(live[-1].address, 1, live[-1].nbytes)\n",
    )

    assert done.returncode == -signal.SIGKILL
