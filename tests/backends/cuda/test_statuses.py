"""Every status of the driver is the right error, with the driver's own words."""

import pickle
import threading

import pytest
from cuda.bindings import driver

from madl.backends.cuda import CudaBackend
from madl.errors import BackendCallError, BackendNotFoundError, OutOfMemoryError
from tests.backends.cuda.content import MIB, PAGE, read
from tests.backends.cuda.emulator import (
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Emulator,
)

UNKNOWN_TO_THE_BINDINGS = 12345


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend(0, memory="segments")


def test_a_status_is_named_in_the_drivers_words(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.fail_next("cuMemAlloc_v2", INVALID_VALUE)

    with pytest.raises(BackendCallError) as caught:
        backend.reserve(MIB)

    assert emulator.failed() == "cuMemAlloc_v2"
    assert str(caught.value) == (
        "cuda:0: cannot reserve: cuMemAlloc failed with 1 (CUDA_ERROR_INVALID_VALUE: "
        "invalid argument)"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_no_memory_is_out_of_memory(backend: CudaBackend, emulator: Emulator) -> None:
    emulator.fail_next("cuMemAlloc_v2", OUT_OF_MEMORY)

    with pytest.raises(OutOfMemoryError) as caught:
        backend.reserve(MIB)

    assert (caught.value.requested, caught.value.device) == (MIB, "cuda:0")


def test_a_copy_that_finds_no_memory_is_not_out_of_memory(
    backend: CudaBackend, emulator: Emulator
) -> None:
    reservation = backend.reserve(MIB)
    emulator.fail_next("cuMemsetD8Async", OUT_OF_MEMORY)

    with pytest.raises(BackendCallError):
        backend.fill(reservation, 0, MIB, 0)

    assert emulator.failed() == "cuMemsetD8Async"
    backend.release(reservation)


def test_a_status_that_the_bindings_do_not_know_is_an_error(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.fail_next("cuMemAlloc_v2", UNKNOWN_TO_THE_BINDINGS)

    with pytest.raises(BackendCallError, match="12345"):
        backend.reserve(MIB)


def test_a_call_that_the_driver_does_not_have_is_an_error(
    backend: CudaBackend, emulator: Emulator
) -> None:
    with pytest.raises(BackendCallError, match="cuCtxResetPersistingL2Cache"):
        backend._device.calls.call("reset", "cuCtxResetPersistingL2Cache")


def test_a_broken_context_is_explained(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.fail_next("cuMemAlloc_v2", ILLEGAL_ADDRESS)

    with pytest.raises(BackendCallError) as caught:
        backend.reserve(MIB)

    assert caught.value.__notes__ == [
        "A kernel or a copy before this call broke the CUDA context: nothing works on "
        "the device until the process is started anew. Try: CUDA_LAUNCH_BLOCKING=1, or "
        "compute-sanitizer, to see which one."
    ]


@pytest.mark.parametrize("memory", ["pages", "segments", "async", "pinned"])
def test_a_driver_that_is_gone_took_everything_back(
    memory: str, emulator: Emulator
) -> None:
    backend = CudaBackend(0, memory=memory)
    reservations = [backend.reserve(2 * PAGE) for _ in range(2)]
    if memory == "pages":
        for reservation in reservations:
            backend.commit(reservation, 0, 2 * PAGE)

    emulator.shut_down(is_down=True)
    if memory == "pages":
        backend.decommit(reservations[0], 0, PAGE)
    backend.release(reservations[0])
    with pytest.raises(BackendCallError, match="CUDA_ERROR_DEINITIALIZED"):
        backend.reserve(PAGE)

    emulator.shut_down(is_down=False)
    for reservation in reservations:
        backend.release(reservation)


def test_any_thread_may_use_the_device(backend: CudaBackend) -> None:
    found: list[bytes] = []

    def work() -> None:
        reservation = backend.reserve(MIB)
        backend.fill(reservation, 0, MIB, 3)
        found.append(read(backend, reservation))
        backend.release(reservation)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [b"\x03" * 8] * 4


def test_the_threads_own_context_is_current_afterwards(emulator: Emulator) -> None:
    status, other = driver.cuDevicePrimaryCtxRetain(1)
    assert int(status) == 0 == int(driver.cuCtxPushCurrent(other)[0])

    backend = CudaBackend(0)
    reservation = backend.reserve(2 * PAGE)
    backend.commit(reservation, 0, PAGE)
    backend.fill(reservation, 0, PAGE, 1)
    backend.release(reservation)
    with pytest.raises(OutOfMemoryError):
        CudaBackend(0, memory="segments").reserve(1 << 40)

    assert int(driver.cuCtxPopCurrent()[1]) == int(other)
    driver.cuDevicePrimaryCtxRelease(1)


@pytest.mark.parametrize("index", [7, -1])
def test_a_device_that_is_not_there_is_not_found(
    index: int, emulator: Emulator
) -> None:
    with pytest.raises(BackendNotFoundError) as caught:
        CudaBackend(index)

    assert caught.value.reason == "there are 2 CUDA devices, counted from 0"
