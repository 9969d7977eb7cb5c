"""The path of an allocation that finds what it needs: bins, counters, the handle.

The compiled core is the product. ``fallback`` is the same in plain Python, for where
nothing compiles: same offsets to the byte, same results, fewer promises.
"""

from typing import TYPE_CHECKING

from madl.hotpath.shared import (
    BLOCK_GRANULARITY,
    LARGEST_REQUEST_NBYTES,
    BlockState,
    Watch,
)

IS_COMPILED = False
"""Whether the compiled body is the one that runs."""
HOW_TO_COMPILE = (
    "a C compiler, then in madl's checkout: MADL_COMPILE=1 pip install "
    "--force-reinstall --no-deps ."
)
"""What to try where only the other one will do."""

if TYPE_CHECKING:
    from typing import Any

    from madl.hotpath.fallback import (
        Bins,
        Block,
        HotPool,
        Memory,
        Root,
        Shared,
        attach,
        bins_of,
        detach,
        exchange,
        hand_out,
        head_of,
        is_viewed,
        keep_by,
        lane_of,
        place_of,
        pool_of,
        root_of,
        set_watch_count,
        slice_of,
        unbin,
        watch_of,
    )
    from madl.hotpath.shared import HotArena
    from madl.hotpath.uses import Uses

    CompiledJournal: Any  # a type, or None where nothing is compiled
else:
    try:
        from madl.hotpath import _compiled as _body
        from madl.hotpath._compiled import HotArena

        Block = int  # the compiled body passes addresses of its records around
        IS_COMPILED = True
    except ImportError:
        from madl.hotpath import fallback as _body
        from madl.hotpath.fallback import Block
        from madl.hotpath.shared import HotArena
        from madl.hotpath.uses import Uses

    try:
        from madl.hotpath._journal import Journal as CompiledJournal
    except ImportError:  # nothing is compiled, or the system has no mmap
        CompiledJournal = None

__all__ = [
    "BLOCK_GRANULARITY",
    "IS_COMPILED",
    "LARGEST_REQUEST_NBYTES",
    "Bins",
    "Block",
    "BlockState",
    "CompiledJournal",
    "HotArena",
    "HotPool",
    "Memory",
    "Root",
    "Shared",
    "Uses",
    "Watch",
    "attach",
    "bins_of",
    "detach",
    "exchange",
    "hand_out",
    "head_of",
    "is_viewed",
    "keep_by",
    "lane_of",
    "place_of",
    "pool_of",
    "root_of",
    "set_watch_count",
    "slice_of",
    "unbin",
    "watch_of",
]

if not TYPE_CHECKING:
    for _name in __all__:
        globals().setdefault(_name, getattr(_body, _name, None))
