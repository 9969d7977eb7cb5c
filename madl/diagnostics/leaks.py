"""What stays live that should have been freed: ``with madl.leak_check():``."""

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator

from madl import defaults
from madl.errors import LeakError
from madl.pool import Pool


@contextlib.contextmanager
def leak_check(pool: Pool | None = None) -> Iterator[None]:
    """Raise when more is live at the end of the block than at its start.

    Args:
        pool: The pool in use when None.

    Raises:
        LeakError: With the bytes and blocks by tag. Not raised over another error.

    Counts blocks by tag and size, so one that was allocated before and is freed inside
    hides a new one of the same. What only cycles hold is collected first.
    """
    watched = defaults.pool_in_use() if pool is None else pool
    before = live_blocks(watched)
    yield
    leaked = leaked_since(watched, before)
    if leaked:
        raise LeakError(watched.device, leaked)


def leaked_since(
    pool: Pool, before: Counter[tuple[str, int]]
) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Return bytes and blocks that are live now and were not, by tag.

    What only cycles hold is collected first.
    """
    if live_blocks(pool) - before:
        gc.collect()
    return _by_tag(live_blocks(pool) - before)


def live_blocks(pool: Pool) -> Counter[tuple[str, int]]:
    """Return how many blocks of each tag and size are live."""
    return Counter(
        (block.tag or "(no tag)", block.nbytes)
        for arena in pool.snapshot().arenas
        for block in arena.blocks
        if block.state == "live"
    )


def _by_tag(
    blocks: Counter[tuple[str, int]],
) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Return bytes and blocks of each tag, the most bytes first."""
    total: dict[str, tuple[int, int]] = {}
    for (tag, nbytes), count in blocks.items():
        bytes_before, count_before = total.get(tag, (0, 0))
        total[tag] = (bytes_before + nbytes * count, count_before + count)
    return tuple(sorted(total.items(), key=lambda item: (-item[1][0], item[0])))
