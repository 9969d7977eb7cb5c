"""``madl.empty`` and its kin behave like NumPy's, over pooled memory."""

from collections.abc import Iterator

import numpy as np
import pytest

import madl
from madl import MissingCapabilityError, Pool
from madl.sizes import ADDRESS_SPACE_NBYTES


@pytest.fixture(autouse=True)
def pool() -> Iterator[Pool]:
    with Pool("cpu", limit="64 MiB") as pool, madl.use_pool(pool):
        yield pool
        pool.check()


@pytest.mark.parametrize(
    "shape",
    [
        3,
        (3,),
        (2, 3),
        [4, 5],
        (),
        (0,),
        (3, 0, 2),
        np.int64(7),
        (np.int8(2),),
        np.array([2, 3]),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "u1", np.complex64, "i4,f8", ">i2", "S5"])
def test_empty_has_the_shape_and_type_of_numpys(shape: int, dtype: str) -> None:
    ours, theirs = madl.empty(shape, dtype), np.empty(shape, dtype)

    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert ours.flags.c_contiguous
    assert ours.flags.writeable


def test_empty_is_of_float64_by_default() -> None:
    assert madl.empty(3).dtype == np.float64


def test_the_block_lives_as_long_as_the_array(pool: Pool) -> None:
    array = madl.empty((4, 4), "float32")
    part = array[1:3, ::2]
    del array

    assert pool.stats().live_nbytes == 64
    del part
    assert pool.stats().live_nbytes == 0


def test_zeros_are_zero(pool: Pool) -> None:
    pool.allocate(80).fill(0xFF)

    assert madl.zeros(10).tolist() == [0.0] * 10


def test_full_takes_the_type_of_its_value() -> None:
    array = madl.full((2, 2), 7)

    assert (array.tolist(), array.dtype) == ([[7, 7], [7, 7]], np.dtype(int))


def test_full_takes_a_type_of_its_own() -> None:
    array = madl.full(2, 7, "float16")

    assert (array.tolist(), array.dtype) == ([7.0, 7.0], np.float16)


def test_empty_like_takes_shape_and_type_of_its_model() -> None:
    model = np.zeros((2, 3), "int16")

    array = madl.empty_like(model)

    assert (array.shape, array.dtype) == ((2, 3), np.int16)


def test_empty_like_takes_others_that_are_named() -> None:
    array = madl.empty_like([[1, 2]], dtype="u1", shape=5)

    assert (array.shape, array.dtype) == ((5,), np.uint8)


class Elsewhere:
    """An array of another library; who asks for more than these two fails."""

    shape = (2, 3)

    def __init__(self, dtype: object) -> None:
        self.dtype = dtype


class NamedType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def test_empty_like_looks_at_no_content_of_a_model_elsewhere() -> None:
    array = madl.empty_like(Elsewhere(NamedType("torch.float16")))

    assert (array.shape, array.dtype) == ((2, 3), np.float16)


def test_a_type_that_numpy_has_not_is_refused() -> None:
    model = Elsewhere(NamedType("torch.bfloat17"))

    with pytest.raises(TypeError) as caught:
        madl.empty_like(model)

    assert str(caught.value) == (
        "NumPy has no dtype for torch.bfloat17; pass dtype=, one of that size"
    )
    assert madl.empty_like(model, dtype="u2").shape == (2, 3)


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        ((2, -1), ValueError, "dimensions must not be negative, got (2, -1)"),
        (
            (1.5,),
            TypeError,
            "'float' object cannot be interpreted as an integer",
        ),
        ((1 << 40, 1 << 40), OverflowError, None),
        (ADDRESS_SPACE_NBYTES // 16, madl.OutOfMemoryError, None),
    ],
)
def test_other_shapes_are_refused(
    pool: Pool, shape: int, error: type[Exception], text: str | None
) -> None:
    with pytest.raises(error) as caught:
        madl.empty(shape)

    assert text in (None, str(caught.value))
    assert pool.stats().live_nbytes == 0


def test_python_objects_are_refused(pool: Pool) -> None:
    with pytest.raises(TypeError) as caught:
        madl.zeros(3, object)

    assert str(caught.value) == (
        "dtype object holds Python objects, which need their own"
    )
    del caught  # its traceback has the memory
    assert pool.stats().live_nbytes == 0


def test_a_device_that_the_cpu_cannot_reach_is_refused() -> None:
    with madl.use_pool(Pool("sim")), pytest.raises(MissingCapabilityError):
        madl.empty(3)


def test_a_device_may_be_named() -> None:
    assert madl.empty(3, device="cpu").shape == (3,)
