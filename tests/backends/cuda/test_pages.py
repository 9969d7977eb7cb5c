"""CUDA's virtual memory: pages that are committed, moved and given back."""

import pytest

from madl import Pool
from madl.backends.cuda import CudaBackend
from madl.backends.protocol import Capability, MemoryInfo
from madl.errors import MissingCapabilityError, OutOfMemoryError
from tests.backends.cuda.content import MIB, PAGE, read, usable
from tests.backends.cuda.emulator import INVALID_VALUE, Emulator


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend(0, memory="pages")


def test_pages_are_what_a_backend_takes_where_the_driver_can() -> None:
    backend = CudaBackend(0)

    assert backend.memory == "pages"
    assert Capability.COMMIT | Capability.REMAP in backend.capabilities
    assert backend.page_nbytes == PAGE


def test_each_granule_is_a_handle_of_its_own(
    backend: CudaBackend, emulator: Emulator
) -> None:
    reservation = backend.reserve(16 * PAGE)

    backend.commit(reservation, 0, 3 * PAGE)
    backend.commit(reservation, 8 * PAGE, PAGE)

    assert emulator.count("handles") == emulator.count("mappings") == 4
    backend.release(reservation)


def test_each_page_is_a_handle_once_the_page_size_is_known(
    backend: CudaBackend, emulator: Emulator
) -> None:
    backend.choose_pages(4 * PAGE)
    reservation = backend.reserve(16 * PAGE)

    backend.commit(reservation, 4 * PAGE, 8 * PAGE)

    assert emulator.count("handles") == 2
    backend.remap(reservation, 4 * PAGE, 12 * PAGE, 4 * PAGE)
    backend.decommit(reservation, 8 * PAGE, 8 * PAGE)
    assert emulator.count("handles") == 0
    backend.release(reservation)


def test_what_is_no_whole_page_at_the_end_is_a_handle_too(
    backend: CudaBackend, emulator: Emulator
) -> None:
    backend.choose_pages(4 * PAGE)
    reservation = backend.reserve(5 * PAGE)

    backend.commit(reservation, 0, 5 * PAGE)

    assert emulator.count("handles") == 2
    backend.release(reservation)


def test_a_part_of_a_page_is_not_decommitted(backend: CudaBackend) -> None:
    backend.choose_pages(2 * PAGE)
    reservation = backend.reserve(4 * PAGE)
    backend.commit(reservation, 0, 4 * PAGE)

    with pytest.raises(ValueError, match="whole pages") as caught:
        backend.decommit(reservation, 0, PAGE)

    assert str(caught.value) == (
        f"[0, {PAGE}) must be whole pages that are committed; none of {2 * PAGE} bytes "
        "starts at 0 and ends inside"
    )
    backend.release(reservation)


def test_pages_grow_with_a_limit_so_that_it_holds_a_thousand(
    backend: CudaBackend,
) -> None:
    assert backend.page_nbytes_for(1 << 30) == PAGE
    assert backend.page_nbytes_for(80 << 30) == 82 * MIB


@pytest.mark.parametrize("wrong", [0, PAGE + 1])
def test_a_page_of_no_whole_granules_is_a_value_error(wrong: int) -> None:
    with pytest.raises(ValueError, match="page_nbytes must be"):
        CudaBackend(0, page_nbytes=wrong)


def test_nobody_but_the_driver_chooses_huge_pages(backend: CudaBackend) -> None:
    with pytest.raises(MissingCapabilityError):
        backend.choose_pages(PAGE, huge=True)


def test_a_move_takes_no_memory_and_keeps_the_content(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(memory=2 * PAGE)
    source, target = backend.reserve(8 * PAGE), backend.reserve(8 * PAGE)
    backend.commit(source, 0, 2 * PAGE)
    backend.fill(source, 0, PAGE, 1)
    backend.fill(source, PAGE, PAGE, 2)

    backend.remap(source, 0, 5 * PAGE, 2 * PAGE, into=target)

    assert usable(emulator, source, target) == [False] * 13 + [True, True, False]
    assert read(backend, target, 5 * PAGE) == b"\x01" * 8
    assert read(backend, target, 6 * PAGE) == b"\x02" * 8
    backend.release(source)
    backend.release(target)


def test_what_is_committed_is_missing_from_the_device(
    backend: CudaBackend, emulator: Emulator
) -> None:
    total, before = backend.memory_info()
    reservation = backend.reserve(64 * PAGE)
    backend.commit(reservation, 0, 32 * PAGE)

    assert backend.memory_info() == MemoryInfo(total, before - 32 * PAGE)
    backend.release(reservation)


def test_a_handle_that_the_driver_keeps_is_counted(
    backend: CudaBackend, emulator: Emulator
) -> None:
    reservation = backend.reserve(4 * PAGE)
    backend.commit(reservation, 0, 2 * PAGE)
    emulator.fail_next("cuMemRelease", INVALID_VALUE)

    backend.decommit(reservation, 0, 2 * PAGE)

    assert backend.describe()["not taken back"] == "2.0 MiB"
    assert usable(emulator, reservation) == [False] * 4
    backend.release(reservation)
    emulator.take_handles()


def test_a_device_that_is_full_says_so(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(memory=4 * PAGE)
    reservation = backend.reserve(8 * PAGE)

    with pytest.raises(OutOfMemoryError) as caught:
        backend.commit(reservation, 0, 5 * PAGE)

    assert str(caught.value) == (
        "cuda:0: cannot place 10.0 MiB; cuMemCreate failed with 2 "
        "(CUDA_ERROR_OUT_OF_MEMORY: out of memory). Try: free some memory, or end "
        "other programs that use this device."
    )
    assert emulator.count("handles") == 0
    backend.release(reservation)


def test_running_out_of_addresses_is_told_apart(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(addresses=4 * PAGE)

    with pytest.raises(OutOfMemoryError) as caught:
        backend.reserve(8 * PAGE)

    native = caught.value.report.native
    assert native is not None
    assert native.function == "cuMemAddressReserve"
    assert native.text == (
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory: of address space, not of device "
        "memory"
    )


def test_a_pool_makes_do_with_fewer_addresses(emulator: Emulator) -> None:
    emulator.set(addresses=256 * MIB)

    with Pool("cuda:0") as pool:
        pool.allocate(8 * MIB).free()

        assert pool.stats().reserved_nbytes < 256 * MIB


def test_a_foreign_reservation_is_a_value_error(backend: CudaBackend) -> None:
    other = CudaBackend(0)
    foreign = other.reserve(PAGE)

    with pytest.raises(ValueError, match=r"one of this backend \(cuda:0\)"):
        backend.commit(foreign, 0, PAGE)

    other.release(foreign)


def test_a_device_without_virtual_memory_takes_segments(emulator: Emulator) -> None:
    emulator.set(pages=0)

    backend = CudaBackend(0)

    assert backend.memory == "segments"
    assert Capability.COMMIT not in backend.capabilities
    with pytest.raises(MissingCapabilityError) as caught:
        CudaBackend(0, memory="pages")
    assert str(caught.value) == (
        "cuda:0 has no virtual memory management. Try: memory='segments'"
    )
