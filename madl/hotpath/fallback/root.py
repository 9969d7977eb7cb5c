"""What the host views of a memory look at, interpreted."""

import ctypes
import sys
from typing import Self

from madl.hotpath.fallback.keeping import references
from madl.hotpath.fallback.memory import Memory

_WIDEST = ctypes.c_ubyte * sys.maxsize
"""One array type for all sizes: ctypes keeps every type it makes for ever."""


class Root(_WIDEST):  # type: ignore[misc,valid-type]  # ctypes array types are made at run time
    """The end of every view's chain of owners; it keeps the block until it ends."""

    keeper: Memory
    address: int
    nbytes: int
    references = references

    @classmethod
    def over(cls, address: int, nbytes: int) -> Self:
        """Return a root without a keeper yet."""
        root = cls.from_address(address)
        root.address = address
        root.nbytes = nbytes
        # Let it end with its last view only: the collector ends the objects of a cycle
        # one by one, in any order, while those that it has not come to yet may still
        # use a view.
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(root))
        return root

    def view(self) -> memoryview:
        """Return a writable view of the bytes."""
        return memoryview(self)[: self.nbytes].cast("B")
