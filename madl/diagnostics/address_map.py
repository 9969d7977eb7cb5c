"""All that was ever committed, laid end to end: the lines of a map."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from madl.diagnostics.history import History
from madl.pool.stats import ArenaSnapshot, BlockSnapshot, PoolSnapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray


class AddressMap(NamedTuple):
    """Addresses that were ever committed, laid end to end."""

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
    order = history.committed.address.argsort(kind="stable")
    start = history.committed.address[order]
    reach = np.maximum.accumulate(start + history.committed.nbytes[order])
    is_first = np.append(True, start[1:] > reach[:-1])[: len(start)]
    is_last = np.append(is_first[1:], True)[: len(start)]
    nbytes = reach[is_last] - start[is_first]
    return AddressMap(start[is_first], nbytes, nbytes.cumsum() - nbytes)


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
