"""Copies between memories and buffers of any kind."""

import ctypes
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import madl
from madl import MissingCapabilityError, NotContiguousError, Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu") as pool:
        yield pool


@pytest.mark.parametrize(
    "source",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        array("d", [1.5]),
        np.array([1.5]),
        np.array([1 + 2j], "complex64"),
        np.array([1, 2], ">i4"),
        np.array([(1, 2)], "i4,i4"),
        np.array([True] * 8),
        np.array([[1, 2], [3, 4]], "f2"),
        np.float64(1.5),
    ],
    ids=lambda source: type(source).__name__ + str(getattr(source, "dtype", "")),
)
def test_bytes_of_any_buffer_are_copied_in(pool: Pool, source: object) -> None:
    memory = pool.allocate(8)

    memory.copy_from(source)

    assert memory.tobytes() == bytes(source)  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", ["u1", "f8", "c16", ">i2", "i4,i4", "?"])
def test_bytes_are_copied_out_to_any_buffer(pool: Pool, dtype: str) -> None:
    memory = pool.allocate(16)
    memory.copy_from(bytes(range(16)))
    destination = np.zeros(16 // np.dtype(dtype).itemsize, dtype)

    memory.copy_to(destination)

    assert destination.tobytes() == bytes(range(16))


def test_a_smaller_source_fills_the_start(pool: Pool) -> None:
    memory = pool.allocate(8)
    memory.fill(9)

    memory.copy_from(b"abc")

    assert memory.tobytes() == b"abc" + b"\x09" * 5


def test_memory_is_copied_to_memory(pool: Pool) -> None:
    source, destination = pool.allocate(4), pool.allocate(8)
    source.copy_from(b"abcd")
    destination.fill(0)

    madl.copy(destination[2:6], source)

    assert destination.tobytes() == b"\0\0abcd\0\0"


@pytest.mark.parametrize(("to", "of"), [(1, 0), (0, 1)])
def test_parts_that_overlap_are_copied_as_through_a_third(
    pool: Pool, to: int, of: int
) -> None:
    memory = pool.allocate(8)
    memory.copy_from(b"01234567")

    madl.copy(memory[to : to + 7], memory[of : of + 7])

    moved = bytearray(b"01234567")
    moved[to : to + 7] = b"01234567"[of : of + 7]
    assert memory.tobytes() == moved


def test_nothing_is_copied_from_nothing(pool: Pool) -> None:
    memory = pool.allocate(2)
    memory.fill(1)

    memory.copy_from(b"")
    memory.copy_from(np.empty((3, 0)))

    assert memory.tobytes() == b"\x01\x01"


def test_a_larger_source_is_refused(pool: Pool) -> None:
    memory = pool.allocate(4)
    memory.fill(1)

    with pytest.raises(ValueError, match=r"^cannot copy") as caught:
        memory.copy_from(b"12345")

    assert str(caught.value) == (
        "cannot copy 5 bytes into 4; copy a slice of the source, or allocate a larger "
        "destination"
    )
    assert memory.tobytes() == b"\x01" * 4


def test_a_read_only_destination_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="read-only") as caught:
        pool.allocate(4).copy_to(b"1234")

    assert str(caught.value) == "destination must be writable, got a read-only buffer"


@pytest.mark.parametrize(
    "source",
    [np.arange(6)[::2], np.zeros((2, 3)).T, np.zeros((4, 4))[:, 1]],
    ids=["step", "transposed", "column"],
)
def test_a_layout_with_gaps_is_refused(
    pool: Pool, source: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
) -> None:
    with pytest.raises(NotContiguousError) as caught:
        pool.allocate(100).copy_from(source)

    assert str(caught.value) == (
        f"shape {source.shape} with strides {source.strides} is not C-contiguous. "
        "Try: numpy.ascontiguousarray on it first"
    )


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3, dtype=">i4"),
        np.array([(1, 2.5)], "i4,f8"),
        np.array(["2026-11-30"], "M8[D]"),
        np.float32(1.5) * np.ones((2, 2), np.float16),
        np.array(7),
        np.zeros((0, 3)),
    ],
    ids=str,
)
def test_arrays_of_any_type_are_copied(
    pool: Pool, array: "np.ndarray[Any, np.dtype[Any]]"
) -> None:
    memory = pool.allocate(array.nbytes)
    back = np.empty_like(array)

    memory.copy_from(array)
    memory.copy_to(back)

    assert back.tobytes() == array.tobytes()


class OnlyInterface:
    """What offers NumPy's interface and no buffer."""

    def __init__(self, array: "np.ndarray[Any, np.dtype[Any]]") -> None:
        self.array = array  # the interface tells an address, and keeps nothing
        self.__array_interface__ = array.__array_interface__


class OnlyDlpack:
    """What speaks DLPack and no more, as tensors do."""

    def __init__(self, array: "np.ndarray[Any, np.dtype[Any]]", device: int) -> None:
        self.array = array
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> object:  # noqa: ANN401  # NumPy's own
        return self.array.__dlpack__(**options)


class Gradient:
    """A tensor that its library does not export."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: object) -> object:
        raise BufferError("not with a gradient.")


def only_dlpack(array: "np.ndarray[Any, np.dtype[Any]]") -> OnlyDlpack:
    return OnlyDlpack(array, 1)


@pytest.mark.parametrize("wrap", [OnlyInterface, only_dlpack])
def test_arrays_of_other_libraries_are_copied(
    pool: Pool, wrap: Callable[[object], object]
) -> None:
    memory = pool.allocate(32)

    madl.copy(memory, wrap(np.arange(4, dtype=np.int64)))

    assert memory.as_array("int64").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrap",
    [
        OnlyInterface,
        pytest.param(
            only_dlpack,
            marks=pytest.mark.skipif(
                np.lib.NumpyVersion(np.__version__) < "2.1.0",
                reason="to NumPy before 2.1, what DLPack gives is read-only",
            ),
        ),
    ],
)
def test_arrays_of_other_libraries_are_written(
    pool: Pool, wrap: Callable[[object], object]
) -> None:
    memory, target = pool.allocate(32), np.zeros(4, np.int64)
    memory.copy_from(np.arange(4, dtype=np.int64))

    madl.copy(wrap(target), memory)

    assert target.tolist() == [0, 1, 2, 3]


def test_two_arrays_of_other_libraries_are_copied() -> None:
    target = np.zeros(4, np.int64)

    madl.copy(OnlyInterface(target), OnlyDlpack(np.arange(4, dtype=np.int64), 1))

    assert target.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "text",
            "madl.copy takes a Memory, or an array whose bytes the CPU reaches, got "
            "a builtins.str",
        ),
        (
            OnlyDlpack(np.arange(4, dtype=np.int64), 8),
            "madl.copy takes a Memory, or an array whose bytes the CPU reaches, got "
            f"a {__name__}.OnlyDlpack",
        ),
        (
            Gradient(),
            f"NumPy cannot look at a {__name__}.Gradient: not with a gradient. "
            "Try: its bytes, such as tensor.detach().view(torch.uint8)",
        ),
        (
            np.array([None]),
            "an array of object holds Python objects, not bytes",
        ),
        (
            np.zeros(2, [("number", "i8"), ("object", "O")]),
            "an array of [('number', '<i8'), ('object', 'O')] holds Python objects, "
            "not bytes",
        ),
        (
            (ctypes.py_object * 2)(),
            "an array of <O holds Python objects, not bytes",
        ),
    ],
)
def test_what_has_no_bytes_here_is_refused(
    pool: Pool, source: object, text: str
) -> None:
    with pytest.raises(TypeError) as caught:
        pool.allocate(64).copy_from(source)

    assert str(caught.value) == text


def test_no_copy_overwrites_python_objects(pool: Pool) -> None:
    objects = np.full(2, 5, [("object", "O")])

    with pytest.raises(TypeError, match="holds Python objects"):
        madl.copy(objects, pool.allocate(16))

    assert objects["object"].tolist() == [5, 5]


def test_the_name_of_a_field_is_no_type(pool: Pool) -> None:
    memory = pool.allocate(4)

    memory.copy_from(np.array([(7,)], [("Object", "<i4")]))

    assert memory.tobytes() == b"\x07\0\0\0"


def test_a_stream_is_refused_where_there_are_none(pool: Pool) -> None:
    memory = pool.allocate(4)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.copy_from(b"1234", stream=1)

    assert str(caught.value) == "cpu has no streams. Try: copy without stream="


def test_memory_that_the_cpu_cannot_reach_is_refused(pool: Pool) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        madl.copy(pool.allocate(4), Pool("sim").allocate(4))

    assert caught.value.device == "sim"
