"""Ranges of addresses that come and go, and when each was there."""

from array import array
from bisect import bisect_right, insort


class RangeLog:
    """Which bytes are taken at a moment, and from when to when each range was.

    Moments are counted by whoever uses it. Adding what is there already, or removing
    what is not, has no effect.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._end_of: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._past = array("q")
        """Four numbers a range that is no more: address, nbytes, start, stop."""

    def ranges(self) -> list[tuple[int, int]]:
        """Return what is taken now as ``(address, nbytes)``, lowest first."""
        return [(start, self._end_of[start] - start) for start in self._starts]

    def add(self, address: int, nbytes: int, moment: int) -> None:
        """Take a range."""
        self.remove(address, nbytes, moment)
        if nbytes > 0:
            self._insert(address, address + nbytes, moment)

    def remove(self, address: int, nbytes: int, moment: int) -> None:
        """Give a range back; what is left of the ranges that it cuts stays."""
        end = address + nbytes
        first = bisect_right(self._starts, address)
        if first and self._end_of[self._starts[first - 1]] > address:
            first -= 1
        last = first
        while last < len(self._starts) and self._starts[last] < end:
            last += 1
        cut = self._starts[first:last]
        del self._starts[first:last]
        for start in cut:
            self._cut(start, address, end, moment)

    def rows(self, last_moment: int) -> "array[int]":
        """Return four numbers a range: address, nbytes, start, stop.

        It was there from moment ``start`` until before ``stop``; what still is has a
        stop after ``last_moment``.
        """
        rows = array("q", self._past)
        for start in self._starts:
            rows.extend((start, self._end_of[start] - start))
            rows.extend((self._since[start], last_moment + 1))
        return rows

    def _insert(self, start: int, end: int, since: int) -> None:
        insort(self._starts, start)
        self._end_of[start] = end
        self._since[start] = since

    def _cut(self, start: int, address: int, end: int, moment: int) -> None:
        stop, since = self._end_of.pop(start), self._since.pop(start)
        low, high = max(start, address), min(stop, end)
        if since < moment:
            self._past.extend((low, high - low, since, moment))
        if start < low:
            self._insert(start, low, since)
        if high < stop:
            self._insert(high, stop, since)
