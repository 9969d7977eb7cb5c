"""The way of an allocation that finds what it needs: bins, counters, the handle.

There are two bodies with the same names and the same tests: ``_compiled``, which a
machine with a C compiler gets, and ``interpreted_memory`` with ``interpreted_pool``.
"""

from typing import TYPE_CHECKING

from madl.hotpath.counting import HAS_INTERPRETER_LOCK
from madl.hotpath.shared import (
    BLOCK_GRANULARITY,
    LARGEST_REQUEST_NBYTES,
    BlockState,
    Watch,
    register_cold,
)

IS_COMPILED = False
"""Whether the compiled body is the one that runs."""
HOW_TO_COMPILE = (
    "a C compiler, then in madl's checkout: MADL_COMPILE=1 pip install "
    "--force-reinstall --no-deps ."
)
"""What to try where only the other one will do."""

if TYPE_CHECKING:
    from madl.hotpath.fallback.block import Block
    from madl.hotpath.fallback.join import JoinedPool
    from madl.hotpath.fallback.journal import Journal
    from madl.hotpath.fallback.memory import Memory
    from madl.hotpath.fallback.pool import HotPool, change_watch_count
    from madl.hotpath.fallback.root import Root
    from madl.hotpath.shared import HotArena
else:
    try:
        from madl.hotpath._compiled import (
            HotArena,
            HotPool,
            JoinedPool,
            Memory,
            Root,
            change_watch_count,
        )

        Block = int  # the compiled body passes addresses of its records around
        IS_COMPILED = True
    except ImportError:
        from madl.hotpath.fallback.block import Block
        from madl.hotpath.fallback.join import JoinedPool
        from madl.hotpath.fallback.memory import Memory

        if not HAS_INTERPRETER_LOCK:
            from madl.hotpath.fallback import guarded as interpreted_guarded

            interpreted_guarded.install()
        from madl.hotpath.fallback.pool import HotPool, change_watch_count
        from madl.hotpath.fallback.root import Root
        from madl.hotpath.shared import HotArena

    try:
        from madl.hotpath._journal import Journal
    except ImportError:
        from madl.hotpath.fallback.journal import Journal

__all__ = [
    "BLOCK_GRANULARITY",
    "IS_COMPILED",
    "LARGEST_REQUEST_NBYTES",
    "Block",
    "BlockState",
    "HotArena",
    "HotPool",
    "JoinedPool",
    "Journal",
    "Memory",
    "Root",
    "Watch",
    "change_watch_count",
    "register_cold",
]
