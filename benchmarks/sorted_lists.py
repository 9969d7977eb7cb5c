"""What the index is compared with: free blocks in two sorted lists.

One by offset and one by size, so that a search bisects. What is found is the smallest
block that fits, best fit, which is the lowest one too where sizes rise with offsets.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Protocol, Self


class Sorted(Protocol):
    """A sequence in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> tuple[int, int]: ...

    def __delitem__(self, place: int, /) -> None: ...

    def add(self, item: tuple[int, int]) -> None:
        """Put an item where it belongs."""

    def bisect_left(self, item: tuple[int, int]) -> int:
        """Return the place of the first item that is not less."""


class BisectList(list[tuple[int, int]]):
    """A list kept sorted by ``bisect``: adding moves what lies behind."""

    def add(self, item: tuple[int, int]) -> None:
        """Put an item where it belongs."""
        insort(self, item)

    def bisect_left(self, item: tuple[int, int]) -> int:
        """Return the place of the first item that is not less."""
        return bisect_left(self, item)


class TwoSortedLists:
    """Free blocks with the methods of ``SkipList`` that the benchmark calls."""

    def __init__(self, make: Callable[[], Sorted]) -> None:
        self._by_offset = make()
        self._by_size = make()
        self._found = 0

    @classmethod
    def bisected(cls) -> Self:
        """Return one over plain lists."""
        return cls(BisectList)

    def find(self, nbytes: int) -> int:
        """Return the offset of the smallest block of at least ``nbytes``, or -1."""
        self._found = self._by_size.bisect_left((nbytes, -1))
        if self._found == len(self._by_size):
            return -1
        return self._by_size[self._found][1]

    def carve_found(self, nbytes: int) -> None:
        """Take ``nbytes`` from the low end of the block that ``find`` returned."""
        had, offset = self._by_size[self._found]
        del self._by_size[self._found]
        del self._by_offset[self._by_offset.bisect_left((offset, 0))]
        if had > nbytes:
            self._add(offset + nbytes, had - nbytes)

    def put(self, offset: int, nbytes: int) -> None:
        """Add ``[offset, offset + nbytes)``, joined with free neighbours."""
        place = self._by_offset.bisect_left((offset, 0))
        if place < len(self._by_offset) and self._by_offset[place][0] == (
            offset + nbytes
        ):
            nbytes += self._remove(place)[1]
        if place and sum(self._by_offset[place - 1]) == offset:
            offset, below = self._remove(place - 1)
            nbytes += below
        self._add(offset, nbytes)

    def _add(self, offset: int, nbytes: int) -> None:
        self._by_offset.add((offset, nbytes))
        self._by_size.add((nbytes, offset))

    def _remove(self, place: int) -> tuple[int, int]:
        offset, nbytes = self._by_offset[place]
        del self._by_offset[place]
        del self._by_size[self._by_size.bisect_left((nbytes, offset))]
        return offset, nbytes
