"""Let allocations remember the lines that made them: ``with madl.keep_stacks():``."""

import contextlib
from collections.abc import Iterator

from madl import hotpath, stacks
from madl.pool import tracking


@contextlib.contextmanager
def keep_stacks(depth: int = 1) -> Iterator[None]:
    """Remember where each allocation inside the block comes from, in all threads.

    Reports, snapshots and ``leak_check`` name the lines while a block is live.

    Args:
        depth: Lines to remember: the one that allocated, then its callers.

    Raises:
        ValueError: ``depth`` is not positive.

    At most ``madl.stacks.MOST_STACKS`` different ones are kept. Allocations cost more
    while it is in force.
    """
    if depth < 1:
        raise ValueError(f"depth must be positive, got {depth}")
    stacks.want(depth)
    hotpath.change_watch_count(+1)
    try:
        yield
    finally:
        hotpath.change_watch_count(-1)
        stacks.want_no_more(depth)


@contextlib.contextmanager
def debug(depth: int = 1) -> Iterator[None]:
    """Keep stacks, and warn of each ``Memory`` that is dropped without ``free()``.

    It is what of debug mode any pool can do, for a while. ``Pool(debug=True)`` has it
    at all times, and guard bytes, which a block has from its allocation on or never.

    The ``ResourceWarning`` names the line that allocated. Memory of which arrays or
    memoryviews were made is left out: they are what holds it.

    Args:
        depth: As for ``keep_stacks``.
    """
    with keep_stacks(depth):
        tracking.change_drop_warnings(+1)
        try:
            yield
        finally:
            tracking.change_drop_warnings(-1)
