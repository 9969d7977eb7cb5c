"""Put a pool right after a signal handler has raised in the middle of a change.

Ctrl-C is an exception that may come between any two steps of Python. Whatever it
interrupts says so and ends; before the next change, all that could be half done is
made anew from what changes in one step: the records of blocks. Index and pages are
what they leave free, and of pages that nobody knows the state of, the device is told
to keep nothing.
"""

from collections import defaultdict
from typing import Any

from madl.pool.growth import Growth


def recover(pool: Any, growth: Growth) -> None:  # noqa: ANN401  # Pool, which is above this
    """Make everything of a pool and its lanes anew; its lock is held.

    It may be interrupted as well: then it is done again. O(n log n) in blocks, and
    O(pages). Waits for all streams: nobody knows any more who waits for whom.

    Raises:
        BackendCallError: The device fails. The next call tries again.
    """
    pool._was_interrupted = False  # first: it may be again, and in other threads
    try:
        is_complete = _make_anew(pool, growth)
    except BaseException:
        pool._was_interrupted = True
        raise
    if not is_complete:
        pool._was_interrupted = True


def _make_anew(pool: Any, growth: Growth) -> bool:  # noqa: ANN401  # as above
    growth.settle()
    pool._forget_waiting()
    for arena in growth.all_arenas():
        growth.backend.claim(arena.reservation)
    growth.backend.release_unclaimed()
    for arena in [arena for arena in growth.all_arenas() if arena.is_leaving]:
        arena.leave_again()
        growth.forget(arena)
    if pool._is_closed:
        for lane in pool._family():
            lane._stop_placing()
    is_complete = all(lane._gather_lost() for lane in pool._family())
    # Before the blocks: an arena that a finalizer adds meanwhile is right as it is.
    arenas = growth.all_arenas()
    placed = defaultdict(list)
    for state in pool._all_states():
        placed[state.arena].append((state.offset, state.capacity))
    for arena in arenas:
        arena.recover(placed[arena])
    growth.budget.correct(
        lambda: sum(arena.committed_nbytes for arena in growth.all_arenas())
    )
    return pool._recount() and is_complete
