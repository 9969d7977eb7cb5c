"""Free blocks that wait: for streams that may still use them, or for being wiped."""

from madl.hotpath import Block
from madl.pool.allocate import SlowPool
from madl.pool.stream_order import StreamOrder


class PendingBlock:
    """A free block that streams besides its own may still use."""

    def __init__(self, lane: SlowPool, block: Block, users: list[StreamOrder]) -> None:
        self.lane = lane
        self.block = block
        self.users = users
        self._events: list[object] = []

    def record(self) -> None:
        """Note what the streams have queued by now; only the first call does."""
        if not self._events:
            self._events = [user.record() for user in self.users]

    def is_unused(self) -> bool:
        """Return whether all of them are done with it. Does not wait."""
        self.record()
        return not self.users or all(map(self.users[0].has_reached, self._events))

    def is_wiped(self) -> bool:
        """Wipe the block, if its pool does that; return whether it is done."""
        return self.lane._is_wiped(self.block)
