"""NumPy arrays over pooled memory: ``empty``, ``zeros``, ``full``, ``empty_like``."""

import contextlib
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from madl.pool import default

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Shape = SupportsIndex | Sequence[SupportsIndex]


def empty(
    shape: Shape, dtype: "npt.DTypeLike" = "float64", *, device: str | None = None
) -> "np.ndarray[Any, Any]":
    """Return an array of undefined content over memory of the pool in use.

    Args:
        shape: An int or a tuple of ints.
        dtype: Anything that ``numpy.dtype`` accepts, but no Python objects.
        device: A device that the CPU can reach; ``"cpu"`` when None.

    Returns:
        A writable, C-contiguous array. Its memory goes back to the pool with the
        array and all views of it.

    Raises:
        OutOfMemoryError: As for ``madl.allocate``.
        ValueError: A dimension is negative.
    """
    import numpy as np

    element = np.dtype(dtype)
    dimensions = dimensions_of(shape)
    nbytes = math.prod(dimensions) * element.itemsize
    memory = default.allocate(nbytes, device=device)
    return memory.as_array(element, dimensions)


def zeros(
    shape: Shape, dtype: "npt.DTypeLike" = "float64", *, device: str | None = None
) -> "np.ndarray[Any, Any]":
    """Return an array of zeros; arguments, errors and lifetime are those of ``empty``.

    It is filled, so all of its memory is touched.
    """
    array = empty(shape, dtype, device=device)
    array[...] = 0
    return array


def full(
    shape: Shape,
    value: Any,  # noqa: ANN401  # what NumPy takes
    dtype: "npt.DTypeLike | None" = None,
    *,
    device: str | None = None,
) -> "np.ndarray[Any, Any]":
    """Return an array filled with ``value``, of its dtype when none is given.

    Arguments, errors and lifetime are those of ``empty``.
    """
    import numpy as np

    element = np.asarray(value).dtype if dtype is None else np.dtype(dtype)
    array = empty(shape, element, device=device)
    array[...] = value
    return array


def empty_like(
    model: Any,  # noqa: ANN401  # what NumPy takes
    *,
    dtype: "npt.DTypeLike | None" = None,
    shape: Shape | None = None,
    device: str | None = None,
) -> "np.ndarray[Any, Any]":
    """Return an array of undefined content with the shape and dtype of ``model``.

    Of an array of another library, on any device, only these two are read.

    Raises:
        TypeError: NumPy has no dtype of the model's name; pass ``dtype``.
    """
    if shape is None or dtype is None:
        if not (hasattr(model, "shape") and hasattr(model, "dtype")):
            import numpy as np

            model = np.asarray(model)
        shape = tuple(model.shape) if shape is None else shape
        dtype = _dtype_of(model.dtype) if dtype is None else dtype
    return empty(shape, dtype, device=device)


def _dtype_of(named: Any) -> "np.dtype[Any]":  # noqa: ANN401  # of any library
    """Return NumPy's dtype for that of another library, by name if need be."""
    import numpy as np

    for name in (named, str(named).rpartition(".")[2]):
        with contextlib.suppress(TypeError):
            return np.dtype(name)
    raise TypeError(f"NumPy has no dtype for {named}; pass dtype=, one of that size")


def dimensions_of(shape: Shape) -> tuple[int, ...]:
    """Return a shape as a tuple; a negative dimension is a ValueError."""
    # Not isinstance(): that of a protocol costs more than an array.
    sizes: Any = shape if hasattr(shape, "__len__") else (shape,)
    dimensions = tuple(operator.index(size) for size in sizes)
    if any(size < 0 for size in dimensions):
        raise ValueError(f"dimensions must not be negative, got {dimensions}")
    return dimensions
