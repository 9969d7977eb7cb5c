"""Libraries that know DLPack see the memory itself, and keep its block."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from madl import FreedMemoryError, MissingCapabilityError, Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu", limit="64 MiB") as pool:
        yield pool
        pool.check()


def test_host_memory_is_imported_without_a_copy(pool: Pool) -> None:
    memory = pool.allocate(8)

    array = np.from_dlpack(memory)
    memory.memoryview()[3] = 7

    assert memory.__dlpack_device__() == (1, 0)
    assert (str(array.dtype), array.shape) == ("uint8", (8,))
    assert array[3] == 7


def test_a_slice_is_imported_where_it_lies(pool: Pool) -> None:
    memory = pool.allocate(16)
    memory.copy_from(bytes(range(16)))

    assert np.from_dlpack(memory[4:8]).tolist() == [4, 5, 6, 7]


def test_nothing_is_imported_as_nothing(pool: Pool) -> None:
    assert np.from_dlpack(pool.allocate(0)).shape == (0,)


def test_an_importer_keeps_the_block_whatever_is_freed(pool: Pool) -> None:
    memory = pool.allocate(64)
    part = np.from_dlpack(memory)[8:16]

    memory.free()
    gc.collect()

    assert pool.stats().live_nbytes == 64
    del part
    gc.collect()
    assert pool.stats().live_nbytes == 0


def test_a_capsule_that_nobody_imports_gives_the_block_back(pool: Pool) -> None:
    memory = pool.allocate(64)
    capsule = memory.__dlpack__()
    memory.free()

    assert pool.stats().live_nbytes == 64
    del capsule
    assert pool.stats().live_nbytes == 0


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.1")
def test_an_importer_may_ask_for_a_copy(pool: Pool) -> None:
    memory = pool.allocate(8)
    memory.fill(1)

    array = np.from_dlpack(memory, copy=True)
    memory.fill(2)

    assert array.tolist() == [1] * 8


def test_an_exception_in_flight_stays_what_it_is(pool: Pool) -> None:
    class Unaddable:
        def __radd__(self, other: object) -> object:
            raise KeyError("mine")

    others = np.array([Unaddable()] * 64, object)
    with pytest.raises(KeyError, match="mine"):
        np.add(np.from_dlpack(pool.allocate(64)), others)

    assert pool.stats().live_nbytes == 0


def test_freed_memory_is_not_exported(pool: Pool) -> None:
    memory = pool.allocate(8)
    memory.free()

    with pytest.raises(FreedMemoryError):
        memory.__dlpack__()
    with pytest.raises(FreedMemoryError):
        memory.__dlpack_device__()


def test_memory_that_nobody_exports_says_so() -> None:
    memory = Pool("sim").allocate(8)

    with pytest.raises(MissingCapabilityError) as caught:
        np.from_dlpack(memory)

    assert str(caught.value) == (
        "sim has no DLPack. Try: copy to host memory with madl.copy()"
    )
