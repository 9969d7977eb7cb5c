"""Out of OpenCL memory, in each of the ways that it comes to that."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import madl
from madl import Pool, limit_device
from madl.backends.opencl import OpenclBackend
from tests.backends.opencl.device import pyopencl_or_skip
from tests.backends.opencl.faults import ALLOCATION_FAILURE, FaultyCalls
from tests.shortages import advice_of, check_sums, fill, leak, report_of

pyopencl_or_skip()
pytestmark = pytest.mark.opencl

MIB = 1 << 20
ROOTS = Path(madl.__file__).parents[1], Path(__file__).parents[3]
PATH = os.pathsep.join(map(str, ROOTS))


@pytest.fixture(params=["buffer", "coarse"])
def backend(request: pytest.FixtureRequest) -> OpenclBackend:
    return OpenclBackend("opencl:0", memory=request.param)


@pytest.fixture
def shared_limit() -> Iterator[int]:
    limit_device("opencl:0", 32 * MIB)
    yield 32 * MIB
    limit_device("opencl:0", None)


def test_a_limit_that_is_too_low(backend: OpenclBackend) -> None:
    with Pool(backend, limit=32 * MIB) as pool:
        held = [pool.allocate(n * MIB, tag="weights") for n in (14, 10)]

        report = report_of(lambda: pool.allocate(16 * MIB))

        check_sums(report)
        assert len(held) == 2
        assert advice_of(report) == "free some memory, or a limit of 40.0 MiB."


def test_memory_in_pieces(backend: OpenclBackend) -> None:
    with Pool(backend, limit=32 * MIB) as pool:
        held = fill(pool, MIB)
        del held[::2]

        report = report_of(lambda: pool.allocate(8 * MIB))

        check_sums(report)
        assert advice_of(report).startswith("enough is free, but in pieces of ")


def test_a_leak(backend: OpenclBackend) -> None:
    with Pool(backend, limit=32 * MIB) as pool:
        report = report_of(lambda: leak(pool, MIB))

        check_sums(report)
        assert advice_of(report).startswith("look for a leak: through ")


def test_what_another_pool_keeps(shared_limit: int) -> None:
    with Pool("opencl:0") as other, Pool("opencl:0") as pool:
        other.allocate(20 * MIB).free()

        report = report_of(lambda: pool.allocate(20 * MIB))

        check_sums(report)
        assert report.device_limit_nbytes == shared_limit
        assert advice_of(report) == (
            "trim() of other pools of opencl:0: they keep 20.0 MiB that nobody uses."
        )
        other.trim()
        pool.allocate(20 * MIB).free()


def test_what_another_program_has_taken_the_device_does_not_tell() -> None:
    calls = FaultyCalls(code=ALLOCATION_FAILURE)
    pool = Pool(OpenclBackend("opencl:0", _calls=calls))  # type: ignore[arg-type]  # in its place
    held = pool.allocate(MIB)
    calls.always_fail("create_buffer")

    report = report_of(lambda: pool.allocate(8 * MIB))

    check_sums(report)
    assert report.native is not None
    assert report.native.code == ALLOCATION_FAILURE
    assert advice_of(report).endswith("or end other programs that use it.")
    held.free()


def test_a_block_that_no_buffer_of_the_device_can_be() -> None:
    backend = OpenclBackend("opencl:0")
    total = backend.memory_info().total_nbytes
    with Pool(backend) as pool:
        report = report_of(lambda: pool.allocate(2 * total))

        check_sums(report)
        assert advice_of(report).startswith("a smaller request: the device has ")


# The driver refuses for real: PoCL takes its memory from the process, whose data the
# kernel bounds. It is told to have 1 GiB, and does not hold itself to that.
REFUSED = """
import resource
import sys
from pathlib import Path

import pyopencl as cl
from madl import Pool
from madl.backends.opencl import OpenclBackend
from tests.shortages import advice_of, check_sums, report_of

MIB = 1 << 20
others = cl.Context([cl.get_platforms()[0].get_devices()[0]])
other, pool = Pool("opencl:0"), Pool("opencl:0")
pool.allocate(MIB).free()
pool.trim()
used = Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]
bound = int(used) * 1024 + 1000 * MIB
resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
if sys.argv[1] == "pool":
    taken = [other.allocate(200 * MIB) for _ in range(4)]
    taken.clear()
else:
    queue = cl.CommandQueue(others)
    taken = [cl.Buffer(others, cl.mem_flags.READ_WRITE, 200 * MIB) for _ in range(4)]
    for buffer in taken:
        cl.enqueue_fill_buffer(queue, buffer, b"x", 0, 64)
    queue.finish()
report = report_of(lambda: pool.allocate(240 * MIB))
check_sums(report)
print(report.native)
print(advice_of(report))
taken.clear()
other.trim()
pool.allocate(240 * MIB)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bounds the data of a process")
@pytest.mark.parametrize(
    ("holder", "advice"),
    [
        ("pool", "trim() of other pools of opencl:0: they keep 800.0 MiB that nobody"),
        ("program", "the device says that 1.0 GiB are unused, but not in one piece,"),
    ],
)
def test_the_driver_itself_refuses_what_others_have(holder: str, advice: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, holder],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "POCL_MEMORY_LIMIT": "1", "PYTHONPATH": PATH},
    )

    assert (done.returncode, done.stderr) == (0, "")
    native, said = done.stdout.splitlines()
    assert "failed with -" in native
    assert said.startswith(advice)
