"""Address maps: a log of committed ranges; ranges end to end; an arena as text."""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from madl.diagnostics.history import History, RangeTable
from madl.pool.stats import ArenaSnapshot, BlockSnapshot, PoolSnapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEGEND = (
    "# full  + over half  - under half  . committed, free  _ not committed  | arena"
)


class RangeLog:
    """Which bytes are taken at a moment, and from when to when each range was.

    The caller counts the moments. Adding or removing twice has no effect.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, int]] = []
        """Start, end and first moment of each range, in order; none overlap."""
        self._past = array("q")
        """Four numbers a range that is no more: address, nbytes, start, stop."""

    def ranges(self) -> list[tuple[int, int]]:
        """Return what is taken now as ``(address, nbytes)``, lowest first."""
        return [(start, end - start) for start, end, _ in self._taken]

    def add(self, address: int, nbytes: int, moment: int) -> None:
        """Take a range."""
        self.remove(address, nbytes, moment)
        if nbytes > 0:
            insort(self._taken, (address, address + nbytes, moment))

    def remove(self, address: int, nbytes: int, moment: int) -> None:
        """Give a range back; what is left of the ranges that it cuts stays."""
        end = address + nbytes
        first = bisect_right(self._taken, address, key=itemgetter(1))
        last = bisect_left(self._taken, end, first, key=itemgetter(0))
        left = []
        for start, stop, since in self._taken[first:last]:
            low, high = max(start, address), min(stop, end)
            if since < moment:
                self._past.extend((low, high - low, since, moment))
            if start < low:
                left.append((start, low, since))
            if high < stop:
                left.append((high, stop, since))
        self._taken[first:last] = left

    def table(self, last_moment: int) -> RangeTable:
        """Return all ranges; what still is taken stops after ``last_moment``."""
        rows = array("q", self._past)
        for start, end, since in self._taken:
            rows.extend((start, end - start, since, last_moment + 1))
        return RangeTable(*np.asarray(rows, np.int64).reshape(-1, 4).T)


class AddressMap(NamedTuple):
    """Ranges of addresses that were ever committed, laid end to end."""

    start: "NDArray[np.int64]"
    nbytes: "NDArray[np.int64]"
    offset: "NDArray[np.int64]"
    """Where each starts on the map."""

    @property
    def span(self) -> int:
        """Bytes of all of them."""
        return int(self.nbytes.sum())

    def contain(self, address: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Return which of the addresses lie in one of them."""
        if not len(self.start):
            return np.zeros(len(address), np.bool_)
        number = np.searchsorted(self.start, address, "right") - 1
        return (number >= 0) & (address < (self.start + self.nbytes)[number])

    def on_map(self, address: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Return where on the map addresses are that lie in one of them."""
        number = np.searchsorted(self.start, address, "right") - 1
        return self.offset[number] + address - self.start[number]


def address_map(history: History) -> AddressMap:
    """Return the ranges ever committed, joined where they touch or overlap."""
    starts, ends = history.committed.joined()
    nbytes = ends - starts
    return AddressMap(starts, nbytes, nbytes.cumsum() - nbytes)


def map_snapshot(history: History, moment: int) -> PoolSnapshot:
    """Return where all blocks lie on the map, as if it were one arena."""
    on_map, table = address_map(history), history.blocks
    starts, ends = history.runs_at(moment)
    runs = zip(on_map.on_map(starts).tolist(), (ends - starts).tolist(), strict=True)
    rows = np.flatnonzero(history.live_at(moment) & on_map.contain(table.address))
    offset = on_map.on_map(table.address[rows])
    order = offset.argsort(kind="stable")
    blocks = tuple(
        BlockSnapshot(
            int(offset[n]),
            int(table.capacity[rows[n]]),
            "live",
            int(table.nbytes[rows[n]]),
            history.holders[table.holder[rows[n]]],
        )
        for n in order
    )
    arena = ArenaSnapshot(on_map.span, None, 1, tuple(runs), blocks)
    live, committed = history.live_nbytes[moment], history.committed_nbytes[moment]
    return PoolSnapshot(history.device, int(live), int(committed), (arena,))


def occupancy_line(snapshot: PoolSnapshot, *, width: int = 64) -> str:
    """Return each arena up to its last committed byte, ``width`` characters in all.

    A character stands for a piece of equal bytes, about as many in every arena: how
    much of it is live is read from ``LEGEND``. A bar stands between two arenas.
    """
    spans = [
        (arena, offset + nbytes)
        for arena in snapshot.arenas
        for offset, nbytes in arena.committed_runs[-1:]
    ]
    total = sum(span for _, span in spans)
    if total == 0:
        return "(nothing is committed)"
    left = width - (len(spans) - 1)  # the bars
    drawn = []
    for arena, span in spans:
        pieces = max(round(left * span / total), 1)
        drawn.append(_draw(arena, span, pieces))
        left, total = left - pieces, total - span
    return "|".join(drawn)


def _draw(arena: ArenaSnapshot, span: int, width: int) -> str:
    blocks = [(b.offset, b.capacity_nbytes) for b in arena.blocks if b.state == "live"]
    live, committed = (
        _fill(ranges, span, width) for ranges in (blocks, arena.committed_runs)
    )
    return "".join(map(_character, live, committed))


def _character(live: float, committed: float) -> str:
    if live > 0:
        return "#" if live > 0.995 else "+" if live >= 0.5 else "-"
    return "." if committed >= 0.5 else "_"


def _fill(ranges: Iterable[tuple[int, int]], span: int, width: int) -> list[float]:
    """Return for each of ``width`` equal pieces of ``span`` how much is covered."""
    covered = [0.0] * width
    for offset, nbytes in ranges:
        start, stop = offset * width / span, min(offset + nbytes, span) * width / span
        for piece in range(int(start), min(int(stop) + 1, width)):
            covered[piece] += max(min(stop, piece + 1) - max(start, piece), 0.0)
    return covered
