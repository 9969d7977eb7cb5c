"""The history of a run: address and lifetime of every block and committed range.

A moment is a number of events: at moment 0 nothing has happened yet. A row of a table
was there from its ``start`` until before its ``stop``.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


OUT_OF_MEMORY = "out of memory"
"""The label of a marker where a request could not be placed."""


class BlockTable(NamedTuple):
    """Every block there ever was, a column each.

    Attributes:
        address: Where it lay.
        nbytes: Bytes asked for.
        capacity: Bytes given.
        start: The first moment of it.
        stop: The first moment without it.
        holder: An index into ``History.holders``.
        place: An index into ``History.places``.
    """

    address: "Integers"
    nbytes: "Integers"
    capacity: "Integers"
    start: "Integers"
    stop: "Integers"
    holder: "Integers"
    place: "Integers"


class RangeTable(NamedTuple):
    """Every range that was ever committed, a column each.

    Attributes:
        address: Where it starts.
        nbytes: Its length.
        start: The first moment of it.
        stop: The first moment without it.
    """

    address: "Integers"
    nbytes: "Integers"
    start: "Integers"
    stop: "Integers"

    def joined(self) -> tuple["Integers", "Integers"]:
        """Return starts and ends, lowest first; what touches or overlaps is one."""
        order = self.address.argsort(kind="stable")
        starts = self.address[order]
        ends = np.maximum.accumulate(starts + self.nbytes[order])
        is_first = np.append(True, starts[1:] > ends[:-1])[: len(starts)]
        is_last = np.append(is_first[1:], True)[: len(starts)]
        return starts[is_first], ends[is_last]


class Moment(NamedTuple):
    """A moment that is worth looking at.

    Attributes:
        moment: A number of events.
        label: What it is.
    """

    moment: int
    label: str


class FreeSpace(NamedTuple):
    """What is committed and free.

    Attributes:
        nbytes: Bytes in all.
        largest_nbytes: Bytes of the largest piece.
    """

    nbytes: int
    largest_nbytes: int

    @property
    def fragmentation_ratio(self) -> float:
        """``1 - largest / free``; 0 when none is free."""
        return 1 - self.largest_nbytes / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class History:
    """One run on one device."""

    name: str
    device: str
    placed_by: str
    """Whose placement it is, in words."""
    last_moment: int
    blocks: BlockTable
    committed: RangeTable
    holders: tuple[str | None, ...]
    """Tags, or places where there are no tags; ``None`` for blocks without one."""
    places: tuple[str | None, ...] = (None,)
    """Where blocks were asked for, as in ``"train.py:12 (step)"``."""
    has_addresses: bool = False
    """Whether addresses are those of a device, and not made up for each arena."""
    limit_nbytes: int | None = None
    """Bytes that may be committed, or that the device had; ``None`` if not known."""
    markers: tuple[Moment, ...] = ()
    notes: tuple[str, ...] = ()
    """Caveats for the reader, a sentence each."""

    @cached_property
    def live_nbytes(self) -> "Integers":
        """Bytes asked for that are live, at each moment."""
        return self._sums(self.blocks)

    @cached_property
    def committed_nbytes(self) -> "Integers":
        """Bytes committed, at each moment."""
        return self._sums(self.committed)

    def live_nbytes_of(self, rows: "NDArray[np.bool_]") -> "Integers":
        """Return the live bytes of some of the blocks, at each moment."""
        return self._sums(BlockTable(*(column[rows] for column in self.blocks)))

    @property
    def peak_moment(self) -> int:
        """The first moment with the most live bytes."""
        return int(self.live_nbytes.argmax())

    @property
    def peak_live_nbytes(self) -> int:
        """The high-water mark of live bytes."""
        return int(self.live_nbytes.max())

    @property
    def peak_committed_nbytes(self) -> int:
        """The high-water mark of committed bytes."""
        return int(self.committed_nbytes.max())

    def live_at(self, moment: int) -> "NDArray[np.bool_]":
        """Return which blocks are live."""
        return (self.blocks.start <= moment) & (moment < self.blocks.stop)

    def runs_at(self, moment: int) -> tuple["Integers", "Integers"]:
        """Return the addresses and the ends of committed runs, lowest first."""
        table = self.committed
        rows = (table.start <= moment) & (moment < table.stop)
        return RangeTable(*(column[rows] for column in table)).joined()

    def free_at(self, moment: int) -> FreeSpace:
        """Return what is committed and free. O(n log n) in the live blocks."""
        starts, ends = self.runs_at(moment)
        rows = self.live_at(moment) & (self.blocks.capacity > 0)
        address = self.blocks.address[rows]
        # Free space starts where a run or a block's neighbour ends, and ends where a
        # block or the end of a run begins: in order, the two belong together.
        opens = np.sort(np.append(starts, address + self.blocks.capacity[rows]))
        closes = np.sort(np.append(address, ends))
        gaps = np.maximum(closes - opens, 0)
        return FreeSpace(int(gaps.sum()), int(gaps.max(initial=0)))

    def held_at(self, moment: int) -> dict[str | None, tuple[int, int]]:
        """Return live bytes and blocks of each holder, the largest first."""
        rows = self.live_at(moment)
        holder = self.blocks.holder[rows].astype(np.intp)
        nbytes = self.blocks.nbytes[rows]
        count = np.bincount(holder, minlength=len(self.holders))
        # Not bincount's weights, which are floats: sums are exact to the byte.
        held = np.zeros(len(self.holders), np.int64)
        np.add.at(held, holder, nbytes)
        order = sorted(count.nonzero()[0].tolist(), key=lambda n: (-held[n], n))
        return {self.holders[n]: (int(held[n]), int(count[n])) for n in order}

    def _sums(self, table: BlockTable | RangeTable) -> "Integers":
        changes = np.zeros(self.last_moment + 2, np.int64)
        # An index has 32 bits where an address has.
        np.add.at(changes, table.start.astype(np.intp), table.nbytes)
        np.subtract.at(changes, table.stop.astype(np.intp), table.nbytes)
        return changes.cumsum()[:-1]
