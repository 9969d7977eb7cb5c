"""Leak detection: blocks that stay live, by tag and traceback."""

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, TypeVar

from madl.diagnostics.stacks import keep_stacks
from madl.errors import LeakError
from madl.errors.report import NO_TAG
from madl.pool import Pool, default
from madl.stacks import Stack

_Key = TypeVar("_Key", bound=Hashable)


class Outstanding(NamedTuple):
    """Live blocks with one tag that were allocated from one place.

    Attributes:
        tag: ``None`` without one.
        stack: The line that allocated, then its callers; empty where no stacks were
            kept.
        nbytes: Bytes of all of them, as asked for.
        block_count: How many there are.
    """

    tag: str | None
    stack: Stack
    nbytes: int
    block_count: int


class BlockKind(NamedTuple):
    """What tells a block from others."""

    tag: str | None
    nbytes: int  # as asked for
    stack: Stack


def outstanding(pool: Pool | None = None) -> tuple[Outstanding, ...]:
    """Return what is live by tag and traceback, the most bytes first.

    Args:
        pool: The pool in use when None.

    Complexity: O(blocks + pages). Thread-safe.
    """
    return grouped(live_blocks(default.pool_in_use() if pool is None else pool))


@contextlib.contextmanager
def leak_check(pool: Pool | None = None, *, depth: int = 0) -> Iterator[None]:
    """Raise when more is live at the end of the block than at its start.

    Args:
        pool: The pool in use when None.
        depth: Lines of each traceback to remember inside the block, as for
            ``keep_stacks``; 0 for none.

    Raises:
        LeakError: With the bytes and blocks by tag, and by traceback where there are
            any. Not raised over another error.
        MemoryCorruptionError: The pool is in debug mode, and found damage.

    Counts blocks by tag, size and traceback, so one that was allocated before and is
    freed inside hides a new one of the same. What only cycles hold is collected first.
    """
    watched = default.pool_in_use() if pool is None else pool
    before = live_blocks(watched)
    with keep_stacks(depth) if depth else contextlib.nullcontext():
        yield
    leaked = leaked_since(watched, before)
    if leaked:
        traces = _summed(leaked, lambda kind: kind.stack)
        raise LeakError(
            watched.device,
            _summed(leaked, lambda kind: NO_TAG if kind.tag is None else kind.tag),
            tuple((stack, figures) for stack, figures in traces if stack),
        )


def leaked_since(pool: Pool, before: Counter[BlockKind]) -> Counter[BlockKind]:
    """Return how many blocks of each kind are live now and were not.

    What only cycles hold is collected first. A pool in debug mode is checked as well.
    """
    if live_blocks(pool) - before:
        gc.collect()
    if pool.is_debugging:
        pool.check()
    return live_blocks(pool) - before


def live_blocks(pool: Pool) -> Counter[BlockKind]:
    """Return how many blocks of each kind are live."""
    return Counter(
        BlockKind(block.tag, block.nbytes, block.stack)
        for arena in pool.snapshot().arenas
        for block in arena.blocks
        if block.state == "live"
    )


def grouped(blocks: Counter[BlockKind]) -> tuple[Outstanding, ...]:
    """Return blocks by tag and traceback, the most bytes first."""
    groups = _summed(blocks, lambda kind: (kind.tag, kind.stack))
    return tuple(Outstanding(tag, stack, *figures) for (tag, stack), figures in groups)


def _summed(
    blocks: Counter[BlockKind], key_of: Callable[[BlockKind], _Key]
) -> tuple[tuple[_Key, tuple[int, int]], ...]:
    """Return bytes and blocks under each key, the most bytes first."""
    total: dict[_Key, tuple[int, int]] = {}
    for kind, count in blocks.items():
        nbytes, number = total.get(key_of(kind), (0, 0))
        total[key_of(kind)] = (nbytes + kind.nbytes * count, number + count)
    return tuple(sorted(total.items(), key=lambda item: (-item[1][0], str(item[0]))))
