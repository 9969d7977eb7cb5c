"""Record the traceback of each allocation: ``with madl.keep_stacks():``."""

import contextlib
from collections.abc import Iterator

from madl.pool.tracking import Wish, wanted


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
    with wanted(Wish(lines=depth)):
        yield


@contextlib.contextmanager
def debug(depth: int = 1) -> Iterator[None]:
    """Keep stacks, and warn of each ``Memory`` that is dropped without ``free()``.

    It is the part of debug mode that any pool can do for a while; guard bytes need
    ``Pool(debug=True)``, as a block has them from its allocation on.

    The ``ResourceWarning`` names the line that allocated. Memory under arrays or
    memoryviews is left out: they own it.

    Args:
        depth: As for ``keep_stacks``.
    """
    with keep_stacks(depth), wanted(Wish(warns_of_drops=True)):
        yield
