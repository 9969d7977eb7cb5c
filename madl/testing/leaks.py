"""What a test left live, in every pool that it could use."""

from collections import Counter

from madl import defaults
from madl.diagnostics.leaks import leaked_since, live_blocks
from madl.pool import Pool
from madl.sizes import format_nbytes


class LeakWatch:
    """Knows what was live in each pool when it was first seen."""

    def __init__(self) -> None:
        self._before = [(pool, live_blocks(pool)) for pool in defaults.open_pools()]

    def watch(self, pool: Pool) -> Pool:
        """Watch another pool from now on; return it."""
        self._before.append((pool, live_blocks(pool)))
        return pool

    def describe_leaks(self) -> str:
        """Return what is live now and was not, and what to do; empty when nothing."""
        known = [pool for pool, _ in self._before]
        made_since = [pool for pool in defaults.open_pools() if pool not in known]
        lines = [
            f"  {pool.device}: {format_nbytes(nbytes)} in {count} "
            f"block{'s'[: count > 1]}, tag {tag}"
            for pool, before in [
                *self._before,
                *((pool, Counter[tuple[str, int]]()) for pool in made_since),
            ]
            for tag, (nbytes, count) in leaked_since(pool, before)
        ]
        if not lines:
            return ""
        return "\n".join(
            [
                "left memory live that it did not find:",
                *lines,
                "Try: free each Memory, drop the arrays and views made from it, or tag "
                "allocations to see where they come from.",
            ]
        )
