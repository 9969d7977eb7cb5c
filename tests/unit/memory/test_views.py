"""Arrays and memoryviews keep the block that they look at, whatever is freed."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from madl import FreedMemoryError, Memory, Pool
from madl.hotpath import IS_COMPILED, root_of

View = Callable[[Memory], object]


def array(memory: Memory) -> object:
    return memory.as_array("uint8")


def typed_array(memory: Memory) -> object:
    return memory.as_array("float32", (2, 3))


def part_of_array(memory: Memory) -> object:
    return memory.as_array("uint8").reshape(8, -1)[2:4, ::2].T


def numpy_asarray(memory: Memory) -> object:
    return np.asarray(memory)


def array_interface(memory: Memory) -> object:
    return memory.__array_interface__["data"]


def view(memory: Memory) -> object:
    return memory.memoryview()


def part_of_view(memory: Memory) -> object:
    return memory.memoryview()[4:8]


def array_of_view(memory: Memory) -> object:
    return np.frombuffer(memory.memoryview(), "uint16")


def view_of_slice(memory: Memory) -> object:
    return memory[8:16].memoryview()


def array_of_slice(memory: Memory) -> object:
    return np.asarray(memory[8:16][2:4])


def builtin_view(memory: Memory) -> object:
    return memoryview(memory)


VIEWS: list[View] = [
    array,
    typed_array,
    part_of_array,
    numpy_asarray,
    array_interface,
    view,
    part_of_view,
    array_of_view,
    view_of_slice,
    array_of_slice,
]
if sys.version_info >= (3, 12):
    VIEWS.append(builtin_view)


def free(memory: Memory) -> None:
    memory.free()


def leave_with(memory: Memory) -> None:
    with memory:
        pass


def drop(memory: Memory) -> None:
    """Leave it to the caller, who holds the last reference."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu") as pool:
        yield pool
        pool.check()


@pytest.mark.parametrize("end", [free, leave_with, drop])
@pytest.mark.parametrize("look", VIEWS)
def test_the_block_lives_as_long_as_a_view(
    pool: Pool, look: View, end: Callable[[Memory], None]
) -> None:
    memory = pool.allocate(64)
    looking = look(memory)

    end(memory)
    del memory

    assert pool.stats().live_nbytes == 64
    assert pool.stats().free_count == 0
    del looking
    assert pool.stats().live_nbytes == 0
    assert pool.stats().free_count == 1


@pytest.mark.parametrize("look", VIEWS)
def test_nobody_gets_a_block_that_somebody_looks_at(pool: Pool, look: View) -> None:
    memory = pool.allocate(64)
    memory.fill(1)
    looking = look(memory)
    memory.free()

    for _ in range(100):
        pool.allocate(64).fill(0xEE)

    assert 0xEE not in np.asarray(looking).tobytes()


def test_the_handle_is_dead_at_once(pool: Pool) -> None:
    memory = pool.allocate(64)
    looking = memory.memoryview()

    memory.free()

    assert memory.is_freed
    assert looking.nbytes == 64


def test_the_last_of_many_views_gives_the_block_back(pool: Pool) -> None:
    memory = pool.allocate(64)
    looking = [look(memory) for look in VIEWS * 3]
    memory.free()

    while looking:
        assert pool.stats().live_nbytes == 64
        looking.pop()

    assert pool.stats().live_nbytes == 0


def test_views_that_are_gone_leave_the_handle_alive(pool: Pool) -> None:
    memory = pool.allocate(64)
    memory.fill(5)

    for look in VIEWS:
        look(memory)

    assert memory.tobytes() == b"\x05" * 64
    memory.free()
    assert pool.stats().live_nbytes == 0


def test_views_look_at_the_same_bytes(pool: Pool) -> None:
    memory = pool.allocate(8)
    array = memory.as_array("uint16")

    array[:] = [1, 2, 3, 0xFFFF]

    assert memory.memoryview().tobytes() == array.tobytes() == memory.tobytes()
    assert array.ctypes.data == memory.address


def test_a_memoryview_is_of_bytes_and_writable(pool: Pool) -> None:
    view = pool.allocate(5).memoryview()

    assert (view.format, view.shape, view.readonly) == ("B", (5,), False)


def test_an_address_is_a_multiple_of_128(pool: Pool) -> None:
    held = [pool.allocate(nbytes) for nbytes in (1, 100, 5000, 3 << 20)]

    assert [memory.as_array().ctypes.data % 128 for memory in held] == [0] * 4


def test_an_array_is_of_all_bytes_by_default(pool: Pool) -> None:
    array = pool.allocate(5).as_array()

    assert (array.dtype, array.shape, array.flags.writeable) == ("uint8", (5,), True)


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("float64", None, (6,)),
        ("float32", 3, (3,)),
        ("int16", (2, 3, 4), (2, 3, 4)),
        ("complex128", [3], (3,)),
        (">i4", np.int64(2), (2,)),
        (">i4", np.array([1, 2]), (1, 2)),
        ([("a", "i4"), ("b", "f8")], (4,), (4,)),
        ("uint8", (), ()),
        ("uint8", (5, 0), (5, 0)),
    ],
    ids=str,
)
def test_an_array_has_the_type_and_shape_asked_for(
    pool: Pool,
    dtype: npt.DTypeLike,
    shape: Any,  # noqa: ANN401  # an array too, which no type of NumPy's admits
    expected: tuple[int, ...],
) -> None:
    memory = pool.allocate(48)

    for _ in range(2):  # the second time madl knows the type, and has the root
        array = memory.as_array(dtype, shape)

        assert (array.dtype, array.shape) == (np.dtype(dtype), expected)
        assert array.flags.c_contiguous


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("dtype", "shape", "error", "text"),
    [
        (
            "float64",
            (2, 4),
            ValueError,
            "an array (2, 4) of float64 needs 64 bytes, the memory has 50",
        ),
        (
            "float64",
            None,
            ValueError,
            "50 bytes are no whole number of float64, which takes 8; pass a shape",
        ),
        (
            "object",
            (1,),
            TypeError,
            "dtype object holds Python objects, which need their own",
        ),
        ("u1", (-1,), ValueError, "dimensions must not be negative, got (-1,)"),
        ("u1", [-1], ValueError, "dimensions must not be negative, got (-1,)"),
        ("u1", -1, ValueError, "dimensions must not be negative, got (-1,)"),
        (
            "u1",
            1 << 80,
            ValueError,
            f"an array ({1 << 80},) of uint8 needs {1 << 80} bytes, the memory has 50",
        ),
    ],
)
def test_an_array_that_cannot_be_is_refused(
    pool: Pool,
    dtype: str,
    shape: tuple[int, ...] | None,
    error: type[Exception],
    text: str,
    is_known: bool,
) -> None:
    memory = pool.allocate(50)
    if is_known:
        memory.as_array("u1")
        memory.as_array("float64", 1)

    with pytest.raises(error) as caught:
        memory.as_array(dtype, shape)

    assert str(caught.value) == text
    assert pool.stats().live_nbytes == 50


@pytest.mark.skipif(
    sys.version_info >= (3, 12) or IS_COMPILED, reason="a Memory is a buffer here"
)
def test_before_python_3_12_a_memoryview_is_a_method(pool: Pool) -> None:
    memory = pool.allocate(8)

    with pytest.raises(TypeError):
        memoryview(memory)


def test_zero_bytes_can_be_looked_at(pool: Pool) -> None:
    memory = pool.allocate(0)

    assert memory.memoryview().tobytes() == b""
    assert np.asarray(memory).shape == (0,)


def test_close_gives_back_what_is_not_looked_at(pool: Pool) -> None:
    looking = pool.allocate(64).memoryview()
    looking[:] = b"a" * 64
    held = [pool.allocate("4 MiB") for _ in range(3)]
    del held

    closed = pool.close()

    assert (closed.live_count, closed.live_nbytes) == (1, 64)
    assert pool.stats().committed_nbytes == pool.page_nbytes
    assert looking.tobytes() == b"a" * 64


def test_the_last_view_of_a_closed_pool_gives_everything_back(pool: Pool) -> None:
    looking = np.asarray(pool.allocate("4 MiB"))
    pool.close()
    looking[:] = 1

    assert pool.stats().committed_nbytes > 0
    del looking

    assert pool.stats().committed_nbytes == 0


def test_a_view_keeps_its_pool() -> None:
    pool = Pool("cpu")
    is_gone = weakref.ref(pool)
    looking = pool.allocate(64).as_array()
    del pool

    looking[:] = 3

    assert is_gone() is not None
    del looking
    assert is_gone() is None


@pytest.mark.parametrize("round_", range(20))
def test_threads_that_look_first_at_once_share_one_block(
    pool: Pool, round_: int
) -> None:
    memory = pool.allocate(64)
    start = threading.Barrier(4)
    looking: list[object] = []

    def look() -> None:
        start.wait()
        looking.append(memory.memoryview())

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.free()

    assert pool.stats().live_nbytes == 64
    looking.clear()
    assert pool.stats().free_count == 1


def test_a_view_in_a_cycle_is_collected(pool: Pool) -> None:
    memory = pool.allocate(64)
    holder: list[object] = [memory, memory.memoryview()]
    holder.append(holder)
    del memory, holder

    gc.collect()

    assert pool.stats().live_nbytes == 0


@pytest.mark.parametrize("had_views", [True, False])
def test_a_data_type_may_free_the_memory(pool: Pool, had_views: bool) -> None:
    memory = pool.allocate(64)
    pool.allocate(64).as_array("uint8")  # its name is known now
    if had_views:
        memory.as_array("uint8")

    class Freeing(str):
        def __eq__(self, other: object) -> bool:
            return str(self) == other

        def __hash__(self) -> int:
            if not memory.is_freed:
                memory.free()
            return hash("uint8")

    with pytest.raises(FreedMemoryError):
        memory.as_array(Freeing("uint8"))


def test_a_fill_leaves_nothing_that_defers_a_free(pool: Pool) -> None:
    memory = pool.allocate(64)

    memory.fill(7)

    assert root_of(memory) is None
