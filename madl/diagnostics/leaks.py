"""What stays live that should have been freed: ``with madl.leak_check():``."""

import contextlib
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

    Counts per tag, so a block freed inside that was allocated before hides one.
    """
    watched = defaults.pool_in_use() if pool is None else pool
    before = _live_by_tag(watched)
    yield
    after = _live_by_tag(watched)
    leaked = {
        tag: (nbytes - before.get(tag, (0, 0))[0], count - before.get(tag, (0, 0))[1])
        for tag, (nbytes, count) in after.items()
        if count > before.get(tag, (0, 0))[1]
    }
    if leaked:
        raise LeakError(watched.device, tuple(sorted(leaked.items(), key=_by_nbytes)))


def _live_by_tag(pool: Pool) -> dict[str, tuple[int, int]]:
    nbytes: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for arena in pool.snapshot().arenas:
        for block in arena.blocks:
            if block.state == "live":
                tag = block.tag or "(no tag)"
                nbytes[tag] += block.nbytes
                count[tag] += 1
    return {tag: (nbytes[tag], count[tag]) for tag in count}


def _by_nbytes(item: tuple[str, tuple[int, int]]) -> int:
    return -item[1][0]
