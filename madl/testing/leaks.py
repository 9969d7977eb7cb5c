"""Leak detection for tests: blocks that were live before and after, by pool."""

import os
from collections import Counter

from madl.diagnostics.leaks import (
    BlockKind,
    Outstanding,
    grouped,
    leaked_since,
    live_blocks,
)
from madl.errors.report import NO_TAG
from madl.pool import Pool, default
from madl.sizes import format_nbytes
from madl.stacks import told

_NOT_THE_TEST = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pluggy"))


class LeakWatch:
    """Knows what was live in each pool when it was first seen."""

    def __init__(self) -> None:
        self._before = [(pool, live_blocks(pool)) for pool in default.open_pools()]

    def watch(self, pool: Pool) -> Pool:
        """Watch another pool from now on; return it."""
        self._before.append((pool, live_blocks(pool)))
        return pool

    def describe_leaks(self) -> str:
        """Return what is live now and was not, and what to do; empty when nothing."""
        known = [pool for pool, _ in self._before]
        made_since = [pool for pool in default.open_pools() if pool not in known]
        lines = [
            line
            for pool, before in [
                *self._before,
                *((pool, Counter[BlockKind]()) for pool in made_since),
            ]
            for group in grouped(leaked_since(pool, before))
            for line in _lines(pool.device, group)
        ]
        if not lines:
            return ""
        return "\n".join(
            [
                "left memory live that it did not find:",
                *lines,
                "Try: free each Memory, and drop the arrays and views made from it.",
            ]
        )


def _lines(device: str, group: Outstanding) -> list[str]:
    blocks = f"{group.block_count} block{'s'[: group.block_count > 1]}"
    tag = NO_TAG if group.tag is None else group.tag
    what = f"  {device}: {format_nbytes(group.nbytes)} in {blocks}, tag {tag}"
    stack = tuple(
        line
        for line in group.stack
        if not any(name in line.filename for name in _NOT_THE_TEST)
    )
    if not stack:
        return [what]
    return [f"{what}, allocated at", *(f"    {text}" for text in told(stack))]
