"""Out of CUDA memory, in each of the ways that it comes to that."""

import pytest

from madl import Pool, limit_device
from madl.backends.cuda import CudaBackend
from madl.backends.protocol import Capability
from tests.backends.cuda.content import MIB, PAGE
from tests.backends.cuda.emulator import Emulator
from tests.shortages import advice_of, check_sums, fill, leak, report_of

MEMORIES = ("pages", "segments", "async")
DEVICE_NBYTES = 64 * MIB


@pytest.fixture(params=MEMORIES)
def backend(request: pytest.FixtureRequest, emulator: Emulator) -> CudaBackend:
    emulator.set(memory=DEVICE_NBYTES)
    return CudaBackend(0, memory=request.param)


def test_a_limit_that_is_too_low(backend: CudaBackend) -> None:
    with Pool(backend, limit=32 * MIB) as pool:
        held = [pool.allocate(n * MIB, tag="weights") for n in (14, 10)]

        report = report_of(lambda: pool.allocate(16 * MIB))

        check_sums(report)
        assert report.device_total_nbytes == DEVICE_NBYTES
        assert advice_of(report) == "free some memory, or a limit of 40.0 MiB."
        held.clear()


def test_memory_in_pieces(backend: CudaBackend) -> None:
    with Pool(backend, limit=32 * MIB) as pool:
        held = fill(pool, MIB)
        del held[::2]

        report = report_of(lambda: pool.allocate(8 * MIB))

        check_sums(report)
        assert report.fragmentation_ratio > 0.9
        assert advice_of(report).startswith("enough is free, but in pieces of ")
        held.clear()


def test_a_leak(backend: CudaBackend) -> None:
    with Pool(backend) as pool:
        report = report_of(lambda: leak(pool, MIB))

        check_sums(report)
        assert report.native is not None
        assert report.native.code == 2
        assert advice_of(report).startswith("look for a leak: through ")


def test_what_another_pool_keeps(backend: CudaBackend) -> None:
    with Pool(CudaBackend(0, memory=backend.memory)) as other, Pool(backend) as pool:
        other.allocate(40 * MIB).free()
        held = pool.allocate(20 * MIB)

        report = report_of(lambda: pool.allocate(20 * MIB))

        check_sums(report)
        assert report.others == (40 * MIB, 0)
        assert advice_of(report) == (
            "trim() of other pools of cuda:0: they keep 40.0 MiB that nobody uses."
        )
        other.trim()
        pool.allocate(20 * MIB).free()
        held.free()


def test_what_another_program_has(backend: CudaBackend) -> None:
    theirs = CudaBackend(0, memory="segments")
    taken = theirs.reserve(50 * MIB)
    with Pool(backend) as pool:
        held = pool.allocate(8 * MIB)

        report = report_of(lambda: pool.allocate(8 * MIB))

        check_sums(report)
        assert advice_of(report) == (
            "end other programs that use cuda:0: 50.0 MiB of its 64.0 MiB are not in "
            "any pool of this process."
        )
        held.free()
    theirs.release(taken)


def test_addresses_that_ran_out(emulator: Emulator) -> None:
    with Pool(CudaBackend(0, memory="pages")) as pool:
        emulator.set(addresses=4 * PAGE)

        report = report_of(lambda: pool.allocate(8 * PAGE))

        check_sums(report)
        assert "are unused, but not in one piece" in advice_of(report)


def test_all_pools_of_the_device_share_its_limit(backend: CudaBackend) -> None:
    limit_device("cuda:0", 32 * MIB)
    try:
        with (
            Pool(CudaBackend(0, memory="segments")) as other,
            Pool(backend) as pool,
        ):
            held = [other.allocate(20 * MIB), pool.allocate(8 * MIB)]

            report = report_of(lambda: pool.allocate(8 * MIB))

            check_sums(report)
            assert advice_of(report) == (
                "free some memory, or a limit of the device of 36.0 MiB."
            )
            held.clear()
    finally:
        limit_device("cuda:0", None)


def test_the_suite_is_of_device_memory(backend: CudaBackend) -> None:
    assert Capability.HOST_ACCESS not in backend.capabilities
