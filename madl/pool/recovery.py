"""Rebuild a pool after a signal handler has raised in the middle of a change.

Ctrl-C is an exception that may come between any two steps of Python. Whatever it
interrupts notes so and ends; before the next change, all that could be half done is
rebuilt from what changes in one step: the records of blocks. Index and pages are what
they leave free, and of pages in an unknown state the device is told to keep nothing.
"""

from collections import defaultdict

from madl.pool.arena import Arena
from madl.pool.parts import Parts


def recover(parts: Parts) -> None:
    """Rebuild a pool and its lanes; its lock is held.

    Idempotent: where it is interrupted as well, it is done again. O(n log n) in blocks,
    and O(pages). Waits for all streams: which blocks wait for which is not known.

    Raises:
        BackendCallError: The device fails. The next call tries again.
    """
    shared = parts.shared
    # Before the work: an interruption of another thread from here on is seen again.
    shared.was_interrupted = False
    try:
        is_complete = _rebuild(parts)
    except BaseException:
        shared.was_interrupted = True
        raise
    if not is_complete:
        shared.was_interrupted = True


def _rebuild(parts: Parts) -> bool:
    growth, lanes = parts.growth, parts.streams.lanes
    growth.settle()
    # What waits, waits no more: all of it is found again below.
    parts.streams.pending.clear()
    if parts.debug is not None:
        parts.debug.quarantine.forget()
    for arena in growth.all_arenas():
        growth.backend.claim(arena.reservation)
    growth.backend.release_unclaimed()
    for arena in [arena for arena in growth.all_arenas() if arena.is_leaving]:
        arena.leave_again()
        growth.forget(arena)
    if parts.lock.is_closed:
        for lane in lanes:
            lane.stop_placing()
    is_complete = all(lane.bins.gather_lost() for lane in lanes)
    # Arenas before blocks: a dedicated one that a finalizer adds between the two would
    # be rebuilt without its block.
    arenas = _known_arenas(parts)
    placed = defaultdict(list)
    for state in parts.streams.states():
        placed[state.arena].append((state.offset, state.capacity))
    for arena in arenas:
        arena.recover(placed[arena])
    growth.budget.correct(
        lambda: sum(arena.committed_nbytes for arena in growth.all_arenas())
    )
    return parts.shared.recount(parts.streams.states) and is_complete


def _known_arenas(parts: Parts) -> list[Arena]:
    """Return the arenas whose blocks are all in the lists of lanes.

    Blocks of a stream without a lane are in none, so what is free there is not known.
    """
    listed = [lane.growth for lane in parts.streams.lanes]
    others = [one for one in parts.growth.family if one not in listed]
    return [
        arena
        for arena in parts.growth.all_arenas()
        if not any(other.is_own(arena) for other in others)
    ]
