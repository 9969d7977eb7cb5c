"""Host views of a memory: memoryviews and arrays, without a copy.

All views of one handle share one *root*, the object at the end of every view's chain
of owners: it keeps the block, so the block goes back to its pool when the last view
dies, whatever was freed before.
"""

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any

from madl.hotpath import Memory
from madl.location import Slice, host_address

if TYPE_CHECKING:
    import numpy as np

_WIDEST = ctypes.c_ubyte * sys.maxsize
"""One array type for all sizes: ctypes keeps every type it makes for ever."""


class Root(_WIDEST):  # type: ignore[misc,valid-type]  # ctypes array types are made at run time
    """Holds the handle that keeps a block live for the views made from it."""

    keeper: Memory


def _hide_from_collector(root: Root) -> None:
    """Let a root end with its last view only.

    The collector ends the objects of a cycle one by one, in any order, while those
    that it has not come to yet may still use a view.
    """
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(root))


class _Unviewed:
    """Stands for a handle whose root nobody else refers to."""

    _root: object

    def __init__(self) -> None:
        self._root = object()


def _references(handle: "Memory | _Unviewed") -> int:
    return sys.getrefcount(handle._root)


_REFERENCES_WITHOUT_VIEWS = _references(_Unviewed())
"""To a root. Measured: how many a call itself holds is each Python's own business."""


def view(memory: Memory) -> memoryview:
    """Return a writable view of the bytes, whose root keeps the block live."""
    if isinstance(memory._root, Slice):
        start = memory._root.start
        return view(memory._root.parent)[start : start + memory._nbytes]
    host = host_address(memory, "a view")
    if host == 0:
        return memoryview(bytearray())
    if memory._nbytes > sys.maxsize:  # half of the addresses, where they have 32 bits
        raise OverflowError(
            f"a view has at most {sys.maxsize} bytes, the memory has "
            f"{memory._nbytes}; allocate it in two parts"
        )
    if memory._root is None:
        _attach_root(memory, host)
    return memoryview(memory._root)[: memory._nbytes].cast("B")


def _attach_root(memory: Memory, host: int) -> None:
    root = Root.from_address(host)
    _hide_from_collector(root)
    memory._keep_by(root)


def has_views(memory: Memory) -> bool:
    """Return whether any array or memoryview of the memory lives."""
    return memory._root is not None and (
        _references(memory) > _REFERENCES_WITHOUT_VIEWS
    )


def detach_root(memory: Memory) -> None:
    """Make the handle the block's only keeper again; no view lives."""
    if memory._root is not None:
        memory._root.keeper._forget_block()
        memory._root = None


def array_interface(memory: Memory) -> dict[str, Any]:
    """Return NumPy's array interface; the data is a buffer, so NumPy holds it."""
    return {
        "version": 3,
        "shape": (memory._nbytes,),
        "typestr": "|u1",
        "data": view(memory),
    }


def as_array(memory: Memory, dtype: Any, shape: Any) -> "np.ndarray[Any, Any]":  # noqa: ANN401  # what NumPy takes
    """Return a NumPy array over the memory, without a copy."""
    import numpy as np

    element = np.dtype(dtype)
    if element.hasobject:
        raise TypeError(f"dtype {element} holds Python objects, which need their own")
    if shape is None:
        shape, rest = divmod(memory._nbytes, element.itemsize or 1)
        if rest:
            raise ValueError(
                f"{memory._nbytes} bytes are no whole number of {element}, which "
                f"takes {element.itemsize}; pass a shape"
            )
    dimensions = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    if any(size < 0 for size in dimensions):
        raise ValueError(f"dimensions must not be negative, got {dimensions}")
    needed = math.prod(dimensions) * element.itemsize
    if needed > memory._nbytes:
        raise ValueError(
            f"an array {dimensions} of {element} needs {needed} bytes, "
            f"the memory has {memory._nbytes}"
        )
    return np.ndarray(dimensions, element, buffer=view(memory))
