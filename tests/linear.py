"""First fit over a plain sorted list, to compare the index with.

What most descriptions of first fit mean: look at one free block after the other. For
a few dozen blocks nothing is faster; the time of a search grows with their number.
No pool uses it: it is the reference of tests and a column of the benchmarks.
"""

from bisect import bisect_right

from madl.errors import CorruptedPoolError, UnknownBlockError


class LinearFirstFit:
    """The free blocks of one arena, with the methods of ``SkipList``.

    Two lists in step, so that neighbours are next to each other and a search by
    offset is a bisection. Not thread-safe.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []  # rising, and no block touches the next one
        self._sizes: list[int] = []
        self._found = 0
        self.joined_offset = 0
        self.joined_nbytes = 0
        self.visits = 0
        self.searches = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def largest(self) -> int:
        """Return the bytes of the largest block, 0 when there is none. O(n)."""
        return max(self._sizes, default=0)

    def find(self, nbytes: int) -> int:
        """Return the offset of the lowest block of at least ``nbytes``, or -1. O(n)."""
        self.searches += 1
        for i, size in enumerate(self._sizes):
            if size >= nbytes:
                self._found = i
                self.visits += i + 1
                return self._offsets[i]
        self.visits += len(self._sizes)
        return -1

    def carve_found(self, nbytes: int) -> None:
        """Take ``nbytes`` from the low end of the block that ``find`` returned."""
        i = self._found
        self.carve(self._offsets[i], nbytes)

    def carve(self, offset: int, nbytes: int) -> None:
        """Take ``[offset, offset + nbytes)`` out of the free block that covers it.

        Raises:
            UnknownBlockError: Part of the range is not free. Nothing changed.

        Complexity: O(n), for the lists move up or down.
        """
        i = bisect_right(self._offsets, offset) - 1
        stop = offset + nbytes
        if i < 0 or self._offsets[i] + self._sizes[i] < stop:
            raise UnknownBlockError(offset, nbytes)
        below = offset - self._offsets[i]
        above = self._offsets[i] + self._sizes[i] - stop
        left = [(self._offsets[i], below), (stop, above)]
        self._replace(i, i + 1, [part for part in left if part[1]])

    def put(self, offset: int, nbytes: int) -> None:
        """Add ``[offset, offset + nbytes)``, joined with free neighbours.

        ``joined_offset`` and ``joined_nbytes`` tell the block that results.

        Raises:
            UnknownBlockError: Some of the range is free already. Nothing changed.

        Complexity: O(n), for the lists move up or down.
        """
        first = last = bisect_right(self._offsets, offset)
        start, stop = offset, offset + nbytes
        if first > 0 and self._offsets[first - 1] + self._sizes[first - 1] >= start:
            first -= 1
            start = self._offsets[first]
        if last < len(self._offsets) and self._offsets[last] <= stop:
            stop = self._offsets[last] + self._sizes[last]
            last += 1
        if stop - start != nbytes + sum(self._sizes[first:last]):
            raise UnknownBlockError(offset, nbytes)
        self._replace(first, last, [(start, stop - start)])
        self.joined_offset = start
        self.joined_nbytes = stop - start

    def _replace(self, first: int, last: int, blocks: list[tuple[int, int]]) -> None:
        self._offsets[first:last] = [offset for offset, _ in blocks]
        self._sizes[first:last] = [nbytes for _, nbytes in blocks]

    def blocks(self) -> list[tuple[int, int]]:
        """Return ``(offset, nbytes)`` of every free block, lowest first. O(n)."""
        return list(zip(self._offsets, self._sizes, strict=True))

    def check(self) -> None:
        """Verify every invariant. O(n).

        Raises:
            CorruptedPoolError: With what was found and what was expected.
        """
        previous_stop = -1
        for offset, nbytes in self.blocks():
            if offset <= previous_stop or nbytes <= 0:
                raise CorruptedPoolError(
                    "free blocks in order and apart", (offset, nbytes), previous_stop
                )
            previous_stop = offset + nbytes
