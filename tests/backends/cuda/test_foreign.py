"""``madl.copy`` takes arrays with ``__cuda_array_interface__`` on either side."""

from typing import Any

import numpy as np
import pytest

import madl
from madl import NotContiguousError, Pool
from tests.backends.cuda.emulator import Emulator
from tests.backends.cuda.test_streams import make_stream

COUNT = 1000


class Lent:
    """What another library would show of memory that it holds."""

    def __init__(self, memory: madl.Memory, **others: object) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes // 8,),
            "typestr": "<i8",
            "data": (memory.address, False),
            "strides": None,
            "version": 3,
        } | others


class LentElsewhere(Lent):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


def numbers() -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.arange(COUNT)


def lend() -> Lent:
    """Return an array of the numbers. No fixture: the driver counts what one keeps."""
    memory = Pool("cuda:0").allocate(8 * COUNT)
    memory.copy_from(numbers())
    return Lent(memory)


def lend_zeros() -> Lent:
    memory = Pool("cuda:0").allocate(8 * COUNT)
    memory.fill(0)
    return Lent(memory)


@pytest.mark.parametrize("device", ["cuda:0", "cuda_pinned:0", "cpu"])
def test_an_array_is_copied_to_memory_and_back(device: str) -> None:
    lent = lend()
    empty = lend_zeros()
    memory = Pool(device).allocate(8 * COUNT)

    madl.copy(memory, lent)
    madl.copy(empty, memory)

    assert empty.memory.tobytes() == numbers().tobytes()


def test_an_array_is_copied_to_an_array() -> None:
    lent = lend()
    empty = lend_zeros()
    madl.copy(empty, lent)

    assert empty.memory.tobytes() == numbers().tobytes()


@pytest.mark.parametrize(("start", "to"), [(0, 8), (8, 0)])
def test_parts_of_an_array_that_overlap_are_copied(start: int, to: int) -> None:
    memory = lend().memory
    nbytes = 8 * COUNT - 8
    source, target = memory[start : start + nbytes], memory[to : to + nbytes]

    madl.copy(Lent(target), Lent(source))
    moved = target.tobytes()
    memory.copy_from(numbers())
    madl.copy(Lent(target), source)

    expected = numbers().tobytes()[start : start + nbytes]
    assert moved == target.tobytes() == expected


def test_an_array_is_copied_to_numpy_and_back() -> None:
    lent = lend()
    empty = lend_zeros()
    array = np.zeros(COUNT, np.int64)

    madl.copy(array, lent)
    madl.copy(empty, array)

    assert (array == numbers()).all()
    assert empty.memory.tobytes() == array.tobytes()


def test_an_array_is_copied_from_the_device_that_it_names() -> None:
    empty = lend_zeros()
    memory = Pool("cuda:1").allocate(8 * COUNT)
    memory.copy_from(numbers())

    madl.copy(empty, LentElsewhere(memory))

    assert empty.memory.tobytes() == numbers().tobytes()


def test_work_in_the_stream_of_an_array_comes_first(emulator: Emulator) -> None:
    stream = make_stream()
    source = Pool("cuda:0").allocate(8, stream=stream)
    target = madl.allocate(8)
    emulator.set(lazy=1)  # what is queued is done when somebody waits for its stream
    madl.copy(source, b"12345678", stream=stream)

    madl.copy(target, Lent(source, stream=stream))

    assert target.tobytes() == b"12345678"


def test_an_array_with_gaps_is_refused() -> None:
    lent = lend()
    every_second = Lent(lent.memory, shape=(500,), strides=(16,))

    with pytest.raises(NotContiguousError):
        madl.copy(madl.allocate(8 * COUNT), every_second)


@pytest.mark.parametrize("strides", [(80, 8), None])
def test_strides_without_gaps_are_none(strides: tuple[int, ...] | None) -> None:
    lent = lend()
    array = np.zeros((100, 10), np.int64)

    madl.copy(array, Lent(lent.memory, shape=(100, 10), strides=strides))

    assert (array.ravel() == numbers()).all()


def test_a_read_only_array_is_not_written() -> None:
    lent = lend()
    closed = Lent(lent.memory, data=(lent.memory.address, True))

    with pytest.raises(ValueError, match="destination must be writable"):
        madl.copy(closed, numbers())


def test_an_array_of_numba_is_copied() -> None:
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    empty = lend_zeros()

    madl.copy(empty, cuda.as_cuda_array(lend()))

    assert empty.memory.tobytes() == numbers().tobytes()
