"""Host views of a memory: memoryviews and arrays, without a copy.

All views of one handle share one *root*, the object at the end of every view's chain
of owners: it keeps the block, so the block goes back to its pool when the last view
dies, whatever was freed before.
"""

import math
import sys
from typing import TYPE_CHECKING, Any

from madl.hotpath import Memory, Root, keep_by, root_of, watch_of
from madl.hotpath.shared import array_of, known_dtypes
from madl.memory.place import Slice, check_inside, host_address

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    import numpy as np
    import numpy.typing as npt


def view(memory: Memory) -> memoryview:
    """Return a writable view of the bytes, whose root keeps the block live."""
    part = root_of(memory)
    root = shown_root(part.parent if isinstance(part, Slice) else memory)
    whole = memoryview(bytearray()) if root is None else root.view()
    if not isinstance(part, Slice):
        return whole
    check_inside(memory, part.start, 0 if root is None else root.nbytes)
    return whole[part.start : part.start + memory.nbytes]


def shown_root(memory: Memory) -> Root | None:
    """Return the root of a whole memory's views; ``None`` without bytes."""
    root: Root | None = root_of(memory)
    if root is None or not root.nbytes:  # one that shows nothing
        root = _new_root(memory)
        watch = watch_of(memory)
        if root is not None and watch is not None:
            watch.is_viewed = True
    return root


def _new_root(memory: Memory) -> Root | None:
    """Return a root that shows the bytes; of two threads that race, the first one's."""
    root = None
    while root is None:
        host = host_address(memory, "a view")
        if host == 0:
            return None
        nbytes = memory.nbytes
        if nbytes > sys.maxsize:  # half of the addresses, with 32 bits
            raise OverflowError(
                f"a view has at most {sys.maxsize} bytes, the memory has "
                f"{nbytes}; allocate it in two parts"
            )
        # Not where it was freed or moved since: then again.
        root = keep_by(memory, Root.over(host, nbytes))
    return root


def array_interface(memory: Memory) -> dict[str, Any]:
    """Return NumPy's array interface; the data is a buffer, so NumPy holds it."""
    return {
        "version": 3,
        "shape": (memory.nbytes,),
        "typestr": "|u1",
        "data": view(memory),
    }


def as_array(  # noqa: D417  # a method, whose self is the memory
    memory: Memory,
    dtype: "npt.DTypeLike" = "uint8",
    shape: "SupportsIndex | Sequence[SupportsIndex] | None" = None,
) -> "np.ndarray[Any, Any]":
    """Return a NumPy array over the memory, without a copy.

    Args:
        dtype: Anything ``numpy.dtype`` accepts.
        shape: An int or a tuple; all of the memory as one dimension when None.

    Returns:
        A writable, C-contiguous ``numpy.ndarray``. The block stays live until the
        array and all arrays made from it are gone, whatever is freed before.

    Raises:
        ValueError: The array would be larger than the memory.
        MissingCapabilityError: The CPU cannot reach the device's memory.
    """
    array = None
    if not isinstance(root_of(memory), Slice):
        array = _array_at_once(memory, dtype, shape)
    return _array_with_care(memory, dtype, shape) if array is None else array


def _array_at_once(memory: Memory, dtype: Any, shape: Any) -> Any:  # noqa: ANN401  # what NumPy takes
    """Return an array of a known data type; ``None`` leaves it to the longer way."""
    try:
        element = known_dtypes[dtype]
        root = shown_root(memory)  # only now: a data type's hash may free the memory
        if root is None:
            return None
        nbytes = root.nbytes
        if shape is None:
            shape, rest = divmod(nbytes, element.itemsize)
            if rest:
                return None
        elif type(shape) is not tuple or len(shape) == 1:
            length = shape[0] if type(shape) is tuple else shape
            if type(length) is not int or length < 0:  # to NumPy, -1 is what fits
                return None
        array = array_of[0](shape, element, root)
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    # To NumPy, the buffer of an interpreted root has no end.
    return array if array.nbytes <= nbytes else None


def _array_with_care(memory: Memory, dtype: Any, shape: Any) -> "np.ndarray[Any, Any]":  # noqa: ANN401  # what NumPy takes
    import numpy as np

    element = np.dtype(dtype)
    if element.hasobject:
        raise TypeError(f"dtype {element} holds Python objects, which need their own")
    if shape is None:
        shape, rest = divmod(memory.nbytes, element.itemsize or 1)
        if rest:
            raise ValueError(
                f"{memory.nbytes} bytes are no whole number of {element}, which "
                f"takes {element.itemsize}; pass a shape"
            )
    dimensions = tuple(shape) if hasattr(shape, "__len__") else (shape,)
    if any(size < 0 for size in dimensions):
        raise ValueError(f"dimensions must not be negative, got {dimensions}")
    needed = math.prod(dimensions) * element.itemsize
    if needed > memory.nbytes:
        raise ValueError(
            f"an array {dimensions} of {element} needs {needed} bytes, "
            f"the memory has {memory.nbytes}"
        )
    # Few, and of a size of their own.
    is_plain = element.isbuiltin == 1 and element.itemsize > 0
    if is_plain and isinstance(dtype, str | type | np.dtype):
        array_of[:] = [np.ndarray]
        known_dtypes[dtype] = element
    return np.ndarray(dimensions, element, buffer=view(memory))
