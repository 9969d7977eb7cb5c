"""Numba takes the memory of its CUDA arrays from a pool."""

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from madl import MissingCapabilityError, OutOfMemoryError, Pool
from madl.backends.cuda import CudaBackend
from madl.integrations.numba import memory_of, pool_of, record_stream, use_pool
from madl.pool.allocate import parts_of
from tests.backends.cuda.content import MIB, place
from tests.backends.cuda.emulator import Emulator
from tests.programs import endings, run

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
driver = pytest.importorskip("numba.cuda.cudadrv.driver")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cuda:0", limit="64 MiB") as pool:
        use_pool(pool)
        yield pool
        gc.collect()
        pool.check()
        assert pool.stats().live_nbytes == 0


def test_an_array_comes_from_the_pool(pool: Pool) -> None:
    content = np.arange(1000.0)

    array = cuda.to_device(content)

    assert memory_of(array).address == array.__cuda_array_interface__["data"][0]
    assert pool.stats().live_nbytes == content.nbytes
    assert (array.copy_to_host() == content).all()


def test_a_block_goes_back_with_the_last_array(pool: Pool) -> None:
    array = cuda.device_array(1000, np.uint8)
    part = array[5:10]

    del array

    assert pool.stats().live_nbytes == 1000
    assert memory_of(part).nbytes == 1000
    del part
    assert pool.stats().live_nbytes == 0


def test_the_same_block_serves_the_next_array(pool: Pool) -> None:
    address = cuda.device_array(1000, np.uint8).device_ctypes_pointer.value

    assert memory_of(cuda.device_array(1000, np.uint8)).address == address


def test_a_block_waits_for_a_stream_that_uses_it_too(
    pool: Pool, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    stream = cuda.stream()
    array = cuda.device_array(1000, np.uint8)
    address = memory_of(array).address
    backend: Any = parts_of(pool).backend.backend
    backend.fill(*place(memory_of(array)), 0, stream=stream)

    record_stream(array, stream)
    del array

    assert memory_of(cuda.device_array(1000, np.uint8)).address != address


def test_no_bytes_are_an_array_too(pool: Pool) -> None:
    assert cuda.device_array(0, np.uint8).size == 0


def test_pinned_and_mapped_memory_stay_numbas(pool: Pool) -> None:
    pinned = cuda.pinned_array(1000, np.uint8)
    mapped = cuda.mapped_array(1000, np.uint8)
    pinned[:], mapped[:] = 1, 2

    assert pool.stats().live_nbytes == 0
    assert (pinned.sum(), mapped.sum()) == (1000, 2000)
    del pinned, mapped
    cuda.current_context().memory_manager.reset()


def test_pinned_memory_is_freed_later_as_numba_does_it(pool: Pool) -> None:
    cuda.device_array(1)
    manager = cuda.current_context().memory_manager

    pinned = cuda.pinned_array(1000, np.uint8)
    del pinned

    assert manager.deallocations.memory_capacity > 0
    assert len(manager.deallocations) == 1
    manager.reset()


def test_frees_may_be_deferred(pool: Pool) -> None:
    with cuda.defer_cleanup():
        array = cuda.to_device(np.arange(1000.0))
        del array

    assert pool.stats().live_nbytes == 0


def test_memory_info_is_what_the_limit_leaves(pool: Pool) -> None:
    array = cuda.device_array(10 * MIB, np.uint8)

    info = cuda.current_context().get_memory_info()

    assert (info.free, info.total) == (54 * MIB, 64 * MIB)
    del array


def test_without_a_limit_what_the_pool_has_unused_counts_as_free() -> None:
    with Pool("cuda:0") as pool:
        use_pool(pool)
        before = cuda.current_context().get_memory_info()
        cuda.device_array(10 * MIB, np.uint8)
        gc.collect()

        assert pool.stats().committed_nbytes == 10 * MIB
        assert cuda.current_context().get_memory_info() == before


def test_running_out_of_memory_leaves_all_as_it_was(pool: Pool) -> None:
    array = cuda.device_array(40 * MIB, np.uint8)

    with pytest.raises(OutOfMemoryError):
        cuda.device_array(40 * MIB, np.uint8)

    assert pool.stats().live_nbytes == 40 * MIB
    del array


def test_an_ipc_handle_is_refused(pool: Pool) -> None:
    array = cuda.device_array(1000, np.uint8)

    with pytest.raises(MissingCapabilityError) as caught:
        array.get_ipc_handle()

    assert str(caught.value) == (
        "cuda:0 has no IPC handles of a pool's blocks. Try: send a copy on the host"
    )


def test_a_reset_gives_back_what_is_free(pool: Pool) -> None:
    cuda.device_array(10 * MIB, np.uint8)
    gc.collect()

    cuda.current_context().memory_manager.reset()

    assert pool.stats().committed_nbytes == 0


def test_an_exception_in_flight_stays_what_it_is(pool: Pool) -> None:
    def fail(array: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(cuda.device_array(1000, np.uint8))


def test_memory_of_madl_is_an_array_of_numba(pool: Pool) -> None:
    memory = pool.allocate(128)

    array = cuda.as_cuda_array(memory).view(np.float64)
    array.copy_to_device(np.arange(16.0))

    assert memory.tobytes() == np.arange(16.0).tobytes()
    del array
    memory.free()


@pytest.mark.parametrize("memory", ["pages", "segments"])
def test_the_size_of_an_arrays_memory_is_that_of_its_block(memory: str) -> None:
    with Pool(CudaBackend(0, memory=memory)) as pool:
        use_pool(pool)
        one, beside = (cuda.to_device(np.ones(1000, np.uint8)) for _ in range(2))
        part = one[10:20]

        nbytes = driver.device_memory_size(one)
        driver.device_memset(one, 0, nbytes)

        assert nbytes == driver.device_memory_size(part) == 1000
        assert not one.copy_to_host().any()
        assert beside.copy_to_host().all()
        del one, part, beside


def test_the_size_of_memory_of_madl_is_its_own(pool: Pool) -> None:
    memory = pool.allocate(1000)

    assert driver.device_memory_size(cuda.as_cuda_array(memory)) == 1000
    assert driver.device_memory_size(cuda.as_cuda_array(memory[8:16])) == 8
    memory.free()


@pytest.mark.parametrize("memory", ["pages", "segments"])
def test_of_other_memory_numba_asks_the_driver(memory: str, pool: Pool) -> None:
    cuda.device_array(1)
    backend = CudaBackend(0, memory=memory)
    reservation = backend.reserve(backend.page_nbytes)
    if memory == "pages":
        backend.commit(reservation, 0, reservation.nbytes)
    foreign = Foreign(reservation.address)

    assert driver.device_extents(foreign) == (
        reservation.address,
        (reservation.address or 0) + reservation.nbytes,
    )
    backend.release(reservation)


class Foreign:
    """What Numba takes for memory of the device, from wherever it is."""

    __cuda_memory__ = True
    _cuda_memsize_ = None

    def __init__(self, address: int | None) -> None:
        self.device_ctypes_pointer = ctypes.c_void_p(address)


def test_a_context_that_numba_did_not_make_is_entered(pool: Pool) -> None:
    the_driver = driver.driver
    device = the_driver.cuDeviceGet(0)
    handle = the_driver.cuDevicePrimaryCtxRetain(device)
    context = driver.Context(device, handle)

    context.push()

    pointer = context.memalloc(1000)
    assert pointer.madl_memory.pool is pool
    assert context.get_memory_info().total == 64 * MIB
    del pointer
    context.pop()
    the_driver.cuDevicePrimaryCtxRelease(device)


def test_an_array_of_other_memory_says_so(pool: Pool) -> None:
    memory = pool.allocate(64)
    array = cuda.as_cuda_array(memory)

    with pytest.raises(ValueError, match="the array of 64 bytes has no memory of a"):
        memory_of(array)

    del array
    memory.free()


def test_a_pool_that_was_closed_is_replaced_by_the_default_one(pool: Pool) -> None:
    pool.close()

    array = cuda.device_array(1000, np.uint8)

    assert memory_of(array).pool is pool_of("cuda:0") is not pool
    del array
    pool_of("cuda:0").close()


def test_a_pool_of_another_device_is_refused() -> None:
    with pytest.raises(TypeError, match="pool must be of a CUDA device, got <madl"):
        use_pool(Pool("cpu"))


ALIVE_AT_EXIT = """
import builtins, sys
from numba import cuda
from madl.integrations.numba import memory_of
array = cuda.device_array(1000)
builtins.kept = sys.kept = cuda.device_array(1000)[5:10]
print(memory_of(array).device)
"""
MANAGER = {"NUMBA_CUDA_MEMORY_MANAGER": "madl.integrations.numba"}


def test_an_environment_variable_chooses_it_and_arrays_may_be_alive_at_exit() -> None:
    assert endings(ALIVE_AT_EXIT, **MANAGER) == {(0, "cuda:0\n", "")}


LATE = """
from numba import cuda
cuda.device_array(1000)
from madl.integrations.numba import use_pool
try:
    use_pool()
except RuntimeError as error:
    print(error)
"""


def test_a_pool_that_comes_too_late_is_refused() -> None:
    assert run(LATE) == (
        0,
        "Numba takes its memory from NumbaCUDAMemoryManager already; call use_pool "
        "before the first CUDA array, or set "
        "NUMBA_CUDA_MEMORY_MANAGER=madl.integrations.numba\n",
        "",
    )


SIMULATED = """
from madl.integrations.numba import use_pool
try:
    use_pool()
except ImportError as error:
    print(error)
"""


def test_the_simulator_has_no_memory_managers() -> None:
    status, output, _ = run(SIMULATED, NUMBA_ENABLE_CUDASIM="1")

    assert (status, output) == (
        0,
        "Numba's CUDA simulator has no memory managers; unset NUMBA_ENABLE_CUDASIM\n",
    )
