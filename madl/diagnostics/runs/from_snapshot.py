"""The history of a pool's snapshot: its blocks, as if allocated in address order."""

from pathlib import PurePath

import numpy as np

from madl.diagnostics.history import BlockTable, History, RangeTable
from madl.errors import FileFormatError
from madl.pool.stats import ArenaSnapshot, BlockSnapshot, PoolSnapshot

ADDRESS_LIMIT = 1 << 62
"""Arenas lie, and their bytes add up, below it: sums of two fit 64 bits."""
_GAP_NBYTES = 1 << 21
"""Between arenas that have no addresses, so that two are not joined."""
_ORDER = (
    "This is a snapshot, of one moment. Its blocks are shown as if they had been "
    "allocated in the order in which they lie."
)


def history_of_snapshot(snapshot: PoolSnapshot, path: str) -> History:
    """Return where the blocks of a snapshot lie; it is a history of allocations only.

    Raises:
        FileFormatError: Addresses or sizes are too large to be added up.
    """
    placed = _placed(snapshot, path)
    live = [
        (base + block.offset, block)
        for base, arena in placed
        for block in arena.blocks
        if block.state == "live"
    ]
    tags = _numbers([block.tag for _, block in live])
    places = _numbers([_place(block) for _, block in live])
    holders = places if set(tags) <= {None} else tags
    end = len(live) + 1
    rows = [
        (
            address,
            block.nbytes,
            block.capacity_nbytes,
            moment,
            end,
            holders[_place(block) if holders is places else block.tag],
            places[_place(block)],
        )
        for moment, (address, block) in enumerate(live, 1)
    ]
    ranges = [
        (base + offset, nbytes, 0, end)
        for base, arena in placed
        for offset, nbytes in arena.committed_runs
    ]
    return History(
        name=PurePath(path).name.removesuffix(".gz").removesuffix(".json"),
        device=snapshot.device,
        placed_by="madl's pool, as it was",
        last_moment=len(live),
        blocks=BlockTable(*np.asarray(rows, np.int64).reshape(-1, 7).T),
        committed=RangeTable(*np.asarray(ranges, np.int64).reshape(-1, 4).T),
        holders=tuple(holders),
        places=tuple(places),
        has_addresses=any(arena.address is not None for arena in snapshot.arenas),
        notes=(_ORDER,),
    )


def _placed(snapshot: PoolSnapshot, path: str) -> list[tuple[int, ArenaSnapshot]]:
    """Return the arenas with an address each, its own or one that no other has."""
    placed, end = list[tuple[int, ArenaSnapshot]](), 0
    for arena in snapshot.arenas:
        address = end if arena.address is None else arena.address
        placed.append((address, arena))
        end += arena.nbytes + _GAP_NBYTES
        if max(end, address + arena.nbytes) >= ADDRESS_LIMIT:
            reason = f"an arena ends at {address + arena.nbytes}, no address of memory"
            raise FileFormatError(path, 0, reason)
    return placed


def _place(block: BlockSnapshot) -> str | None:
    return str(block.stack[0]) if block.stack else None


def _numbers(names: list[str | None]) -> dict[str | None, int]:
    """Return a number for each of the names, and for None."""
    return {name: number for number, name in enumerate(dict.fromkeys([None, *names]))}
