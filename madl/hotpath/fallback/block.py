"""A block, interpreted: where it lies, where a free puts it, and who is told."""

from collections import deque
from typing import Protocol

from madl.hotpath.shared import HotArena, Watch


class Block:
    """A part of an arena that is live, or free in a bin. One object for both lives."""

    __slots__ = (
        "arena",
        "capacity",
        "home",
        "nbytes",
        "offset",
        "refund",
        "taken",
        "watch",
    )

    def __init__(
        self, arena: HotArena | None, offset: int, capacity: int, home: "Home"
    ) -> None:
        self.arena = arena
        self.offset = offset
        self.capacity = capacity
        self.home = home  # where a free puts it: its bin, or the pool's returned list
        self.nbytes = 0
        # What a free adds to the account, and not 0 while the block is live.
        self.refund = 0
        # The thread that will make it live, and the how manieth block it is; or None.
        self.taken: tuple[int, int] | None = None
        self.watch: Watch | None = None


class Home(Protocol):
    """What a freed block is appended to."""

    def append(self, block: Block, /) -> None:
        """Take the block. Runs in finalizers."""


def tell_watch(block: Block, *, is_dropped: bool = False) -> None:
    """Tell who watches a block of its free, and put it back, whatever that raises."""
    watch, block.watch = block.watch, None
    assert watch is not None, "only a watched block has somebody to tell"
    try:
        if is_dropped:
            watch.dropped()
        else:
            watch.freed()
    finally:
        block.home.append(block)


NOWHERE: Home = deque(maxlen=0)
"""The home of blocks without bytes: there is nothing to give back."""
