"""CuPy takes the memory of its arrays from a pool.

Its runtime does not run on the emulated driver: what is tested here are the objects of
CuPy that ask nothing of a device.
"""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from madl import FreedMemoryError, OutOfMemoryError, Pool
from madl.integrations.cupy import PoolAllocator, memory_of, record_stream
from tests.backends.cuda.content import MIB, place
from tests.backends.cuda.emulator import Emulator
from tests.backends.cuda.test_streams import make_stream
from tests.programs import endings

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cuda:0", limit="64 MiB") as pool:
        yield pool
        gc.collect()
        pool.check()
        assert pool.stats().live_nbytes == 0


@pytest.fixture
def allocator(pool: Pool) -> Iterator[PoolAllocator]:
    allocator = PoolAllocator(pool, make_stream(), tag="arrays")
    cupy.cuda.set_allocator(allocator)
    yield allocator
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def test_arrays_come_from_the_pool(pool: Pool, allocator: PoolAllocator) -> None:
    array = cupy.empty((10, 100), "f4")

    memory = memory_of(array)
    assert (memory.address, memory.nbytes) == (array.data.ptr, 4000)
    assert (memory.stream, memory.tag) == (allocator.stream, "arrays")
    assert array.data.mem.device_id == 0


def test_a_block_goes_back_with_the_last_array(
    pool: Pool, allocator: PoolAllocator
) -> None:
    array = cupy.empty(1000, "u1")
    part = array[5:10]

    del array

    assert pool.stats().live_nbytes == 1000
    assert part.data.ptr == memory_of(part).address + 5
    del part
    assert pool.stats().live_nbytes == 0


def test_a_stream_gets_its_own_blocks_back_at_once(
    pool: Pool, allocator: PoolAllocator
) -> None:
    address = cupy.empty(1000, "u1").data.ptr

    assert cupy.empty(1000, "u1").data.ptr == address


def test_a_block_waits_for_a_stream_that_uses_it_too(
    pool: Pool, allocator: PoolAllocator, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    array = cupy.empty(1000, "u1")
    address = array.data.ptr
    other = make_stream()
    backend: Any = pool._backend.backend
    backend.fill(*place(memory_of(array)), 0, stream=other)

    record_stream(array, other)
    del array

    assert cupy.empty(1000, "u1").data.ptr != address


def test_no_bytes_are_an_array_too(pool: Pool, allocator: PoolAllocator) -> None:
    assert cupy.empty(0).size == 0


def test_running_out_of_memory_is_a_memory_error(
    pool: Pool, allocator: PoolAllocator
) -> None:
    with pytest.raises(OutOfMemoryError):
        cupy.empty(100 * MIB, "u1")


def test_an_exception_in_flight_stays_what_it_is(
    pool: Pool, allocator: PoolAllocator
) -> None:
    def fail(array: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(cupy.empty(1000, "u1"))


def test_an_array_of_other_memory_says_so() -> None:
    elsewhere = cupy.cuda.UnownedMemory(4096, 64, None, device_id=0)
    pointer = cupy.cuda.MemoryPointer(elsewhere, 0)

    with pytest.raises(ValueError, match="the array of 64 bytes has no memory of a"):
        memory_of(cupy.ndarray(64, "u1", memptr=pointer))


def test_an_array_over_memory_that_exists_keeps_it(pool: Pool) -> None:
    memory = pool.allocate(64)
    view = cupy.cuda.UnownedMemory(memory.address, 64, memory, device_id=0)
    array = cupy.ndarray(64, "u1", memptr=cupy.cuda.MemoryPointer(view, 0))

    del memory, view
    gc.collect()

    assert pool.stats().live_nbytes == 64
    del array


def test_the_per_thread_default_stream_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="the per-thread default stream is another"):
        PoolAllocator(pool, cupy.cuda.Stream.ptds)(64)


def test_a_pool_of_another_device_is_refused() -> None:
    with pytest.raises(TypeError, match="pool must be of a CUDA device, got <madl"):
        PoolAllocator(Pool("cpu"))


def test_freed_memory_is_no_memory_of_an_array(
    pool: Pool, allocator: PoolAllocator
) -> None:
    array = cupy.empty(64, "u1")
    memory_of(array).free()

    with pytest.raises(FreedMemoryError):
        record_stream(array, allocator.stream)


ALIVE_AT_EXIT = """
import builtins
import cupy
import madl
from madl.integrations.cupy import PoolAllocator
allocator = PoolAllocator(madl.default_pool("cuda:0"), cupy.cuda.Stream.null)
cupy.cuda.set_allocator(allocator)
kept = cupy.empty(1000)
builtins.kept = cupy.empty(1000)[5:10]
"""


def test_a_program_ends_in_silence_with_arrays_alive() -> None:
    assert endings(ALIVE_AT_EXIT) == {(0, "", "")}
