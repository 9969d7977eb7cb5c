"""Out of host memory because of others: pools, and programs, for real."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from madl import Pool, limit_device
from madl.pool.allocate import parts_of
from tests.shortages import advice_of, check_sums, report_of

MIB = 1 << 20


@pytest.fixture
def shared_limit() -> Iterator[int]:
    # Beside what earlier tests have left with the default pools.
    used = parts_of(Pool("cpu")).growth.budget.device.committed_nbytes
    limit_device("cpu", used + 32 * MIB)
    yield 32 * MIB
    limit_device("cpu", None)


def test_what_another_pool_keeps(shared_limit: int) -> None:
    with Pool("cpu") as other, Pool("cpu") as pool:
        other.allocate(shared_limit - 8 * MIB).free()
        kept = other.stats().committed_nbytes

        report = report_of(lambda: pool.allocate(20 * MIB))

        check_sums(report)
        assert report.others.unused_nbytes >= kept
        assert advice_of(report).startswith("trim() of other pools of cpu: they keep ")
        other.trim()
        pool.allocate(20 * MIB).free()


if sys.platform == "linux":
    from tests.backends.host import run_child
    from tests.backends.test_linux_cgroup import group, run_inside

    __all__ = ["group"]

    def test_under_a_data_limit_what_another_pool_keeps_is_said() -> None:
        out = run_child(
            "from tests.shortages import advice_of, check_sums\n"
            "status = Path('/proc/self/status').read_text()\n"
            "used = int(status.partition('VmData:')[2].split()[0]) * KIB\n"
            "limit(resource.RLIMIT_DATA, used + 256 * MIB)\n"
            "other, pool = Pool('cpu'), Pool('cpu')\n"
            "other.allocate(160 * MIB).free()\n"
            "try:\n"
            "    pool.allocate(160 * MIB)\n"
            "except OutOfMemoryError as error:\n"
            "    check_sums(error.report)\n"
            "    print(error.report.native)\n"
            "    print(advice_of(error.report))\n"
            "other.trim()\n"
            "pool.allocate(160 * MIB)\n"
        )

        native, advice = out.splitlines()
        assert native.startswith("mprotect failed with 12 ")
        assert "trim() of other pools, which keep 160.0 MiB unused, or a h" in advice

    OTHER_PROGRAM = """
import ctypes, subprocess, sys
import madl
from tests.shortages import advice_of, check_sums, report_of

MIB = 1 << 20
THEIRS = "import sys; x = b'x' * (112 << 20); print(1, flush=True); sys.stdin.read()"
other = subprocess.Popen(
    [sys.executable, "-c", THEIRS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
other.stdout.readline()
with madl.Pool("cpu", limit=64 * MIB) as pool:
    held = pool.allocate(40 * MIB)
    ctypes.memset(held.address, 1, held.nbytes)
    report = report_of(lambda: pool.allocate(64 * MIB))
    check_sums(report)
    print(report.device_total_nbytes == 192 * MIB, advice_of(report))
other.communicate(b"")
"""

    def test_what_another_program_of_the_control_group_has(group: Path) -> None:
        done = run_inside(group, OTHER_PROGRAM)

        assert done.stderr == ""
        is_total, advice = done.stdout.split(" ", 1)
        assert is_total == "True"
        assert advice.startswith("free some memory; a higher limit does not help while")
        assert "unused: first end other programs that use cpu: " in advice
