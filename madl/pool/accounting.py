"""A pool's figures, where its blocks lie, and whether its counts add up."""

import time
from collections.abc import Iterator

from madl.errors import CorruptedPoolError
from madl.hotpath import BlockState
from madl.pool.arena import Arena
from madl.pool.parts import Parts
from madl.pool.stats import ArenaSnapshot, BlockSnapshot, PoolSnapshot, PoolStats

_MOST_LOOKS = 20
_Counted = tuple[int, int, int, int]


def collect_stats(parts: Parts) -> PoolStats:
    """Return a pool's figures. O(blocks + pages); the pool's lock is held."""
    growth, shared = parts.growth, parts.shared
    states = parts.streams.states()
    live = [state for state in states if state.is_live]
    pieces = [piece for arena in growth.arenas for piece in free_pieces(arena, live)]
    largest = max((nbytes for _, nbytes in pieces), default=0)
    committed = growth.budget.committed_nbytes
    free = committed - sum(state.capacity for state in live)
    return PoolStats(
        device=parts.backend.device,
        live_nbytes=shared.live_nbytes,
        padding_nbytes=sum(state.capacity - state.nbytes for state in live),
        cached_nbytes=sum(state.capacity for state in states if not state.is_live),
        committed_nbytes=committed,
        reserved_nbytes=sum(arena.nbytes for arena in growth.all_arenas()),
        live_high_water_nbytes=shared.live_high_water,
        committed_high_water_nbytes=growth.budget.high_water_nbytes,
        largest_free_nbytes=largest,
        fragmentation_ratio=1 - largest / free if free else 0.0,
        allocation_count=shared.allocation_count,
        free_count=shared.allocation_count - len(live),
        miss_count=parts.streams.miss_count(),
        search_steps=sum(arena.blocks.index.visits for arena in growth.arenas),
        backend_calls=growth.backend.calls,
        recycled_pages=sum(one.recycled_pages for one in growth.family),
        tags=parts.tags.stats(),
    )


def collect_snapshot(parts: Parts) -> PoolSnapshot:
    """Return where every block lies. O(blocks + pages); the pool's lock is held."""
    arenas = parts.growth.all_arenas()  # before the blocks, as in check
    states = parts.streams.states()
    return PoolSnapshot(
        device=parts.backend.device,
        live_nbytes=parts.shared.live_nbytes,
        committed_nbytes=parts.budget.committed_nbytes,
        arenas=tuple(snapshot_of(arena, states) for arena in arenas),
    )


def check(parts: Parts) -> None:
    """Verify what a pool's lock protects; it is held.

    Raises:
        CorruptedPoolError: With what was found and what was expected.
    """
    # Arenas before blocks: a dedicated one that a finalizer adds between the two would
    # seem to have no block.
    arenas = parts.growth.all_arenas()
    states = parts.streams.states()
    for arena in arenas:
        arena.blocks.check()
        snapshot = snapshot_of(arena, states)
        is_empty = all(block.state == "free" for block in snapshot.blocks)
        if arena.is_dedicated and is_empty:
            continue  # a thread without the lock has yet to place its block in it
        _check_tiling(arena, snapshot)


def check_sums(parts: Parts) -> None:
    """Compare what is counted with what is there; takes the lock for each look.

    Bins serve other threads without the lock, and so do dedicated allocations: a
    difference counts only when it is there again and again, though nothing is allocated
    or freed. Between two looks the lock is free: a thread that is in the middle of a
    free may be in a finalizer that waits for it.

    Raises:
        CorruptedPoolError: With what is counted and what is there.
    """
    seen: set[tuple[_Counted, int]] = set()
    for attempt in range(_MOST_LOOKS):
        if attempt:
            time.sleep(attempt / 1000)  # lets a thread that is in between finish
        counted, there = parts.lock.hold(lambda: (_counters(parts), _sums(parts)))
        if there == counted[0]:
            return
        seen.add(counted)
    if seen == {_counters(parts)}:
        found = counted[0]
        if found[:2] != there[:2]:
            raise CorruptedPoolError("bytes in bins, and live", found[:2], there[:2])
        what = "bytes committed, by the pool and its device"
        raise CorruptedPoolError(what, found[2:], there[2:])


def _counters(parts: Parts) -> tuple[_Counted, int]:
    """Return what is counted, and what changes with each allocation."""
    shared = parts.shared
    counted = shared.binned_nbytes, shared.live_nbytes, *parts.budget.counted()
    return counted, shared.allocation_count


def _sums(parts: Parts) -> _Counted:
    """Return the same, added up from blocks and arenas."""
    arenas = parts.growth.all_arenas()  # before the blocks, as in check
    states = parts.streams.states()
    committed = sum(arena.committed_nbytes for arena in arenas)
    return (
        sum(state.capacity for state in states if not state.is_live),
        sum(state.nbytes for state in states if state.is_live),
        committed,
        committed,
    )


def _check_tiling(arena: Arena, snapshot: ArenaSnapshot) -> None:
    position = 0
    for block in snapshot.blocks:
        if block.offset != position:
            raise CorruptedPoolError(
                "blocks of an arena without gap or overlap", block.offset, position
            )
        position += block.capacity_nbytes
        if block.state != "free":
            missing = arena.blocks.pages.missing(block.offset, block.capacity_nbytes)
            if missing:
                raise CorruptedPoolError("pages missing under a block", missing, 0)
    if position != arena.nbytes:
        raise CorruptedPoolError("bytes of all blocks", position, arena.nbytes)


def snapshot_of(arena: Arena, states: list[BlockState]) -> ArenaSnapshot:
    """Return where the blocks of an arena lie, and its pages."""
    blocks = [
        BlockSnapshot(offset, nbytes, "free")
        for offset, nbytes in arena.blocks.free_blocks()
    ]
    for state in states:
        if state.arena is arena:
            blocks.append(
                BlockSnapshot(
                    state.offset,
                    state.capacity,
                    "live",
                    state.nbytes,
                    state.tag,
                    state.stack,
                )
                if state.is_live
                else BlockSnapshot(state.offset, state.capacity, "binned")
            )
    blocks.sort(key=lambda block: block.offset)
    return ArenaSnapshot(
        nbytes=arena.nbytes,
        address=arena.address,
        page_nbytes=arena.page_nbytes,
        committed_runs=tuple(_committed_runs(arena)),
        blocks=tuple(blocks),
    )


def _committed_runs(arena: Arena) -> Iterator[tuple[int, int]]:
    pages = arena.blocks.pages
    position = 0
    top_nbytes = pages.top * arena.page_nbytes
    missing = pages.missing_runs(0, top_nbytes) if top_nbytes else []
    for first, stop in [*missing, (pages.top, pages.top)]:
        start = first * arena.page_nbytes
        if start > position:
            yield position, start - position
        position = stop * arena.page_nbytes


def free_pieces(arena: Arena, live: list[BlockState]) -> Iterator[tuple[int, int]]:
    """Yield offset and bytes of each committed piece without a live block."""
    blocks = sorted(
        [(one.offset, one.offset + one.capacity) for one in live if one.arena is arena]
    )
    starts = [0, *[stop for _, stop in blocks]]
    stops = [*[start for start, _ in blocks], arena.blocks.nbytes]
    gaps = list(zip(starts, stops, strict=True))
    runs = [(offset, offset + nbytes) for offset, nbytes in _committed_runs(arena)]
    while gaps and runs:
        start, stop = gaps[-1]
        run_start, run_stop = runs[-1]
        offset = max(start, run_start)
        if min(stop, run_stop) > offset:
            yield offset, min(stop, run_stop) - offset
        # The one that starts higher cannot overlap anything further down.
        (gaps if start >= run_start else runs).pop()
