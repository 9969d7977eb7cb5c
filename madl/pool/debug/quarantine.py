"""Freed blocks that are held back for a while, so that a late write to one is seen."""

from collections import deque
from typing import NamedTuple

from madl.hotpath import Block, HotArena
from madl.pool.debug.guards import Guard
from madl.pool.stream_order import StreamOrder
from madl.pool.streams import Served

MOST_NBYTES = 64 << 20
"""The most that a pool without a limit holds back."""

LIMIT_DIVISOR = 8
"""At most this part of a pool's limit is held back."""


class Held(NamedTuple):
    """A freed block."""

    lane: Served
    block: Block
    guard: Guard
    place: tuple[HotArena, int]
    users: list[StreamOrder]
    """Other streams that may still use it."""


class Quarantine:
    """Freed blocks, the oldest first. Not thread-safe; the pool's lock is held."""

    def __init__(self, limit_nbytes: int | None) -> None:
        self.most_nbytes = MOST_NBYTES
        if limit_nbytes is not None:
            self.most_nbytes = min(MOST_NBYTES, limit_nbytes // LIMIT_DIVISOR)
        self.nbytes = 0
        self.arriving: deque[Held] = deque()
        """Those that have not been looked at yet."""
        self._held: deque[Held] = deque()

    def arrive(self, held: Held) -> None:
        """Take a block that was freed."""
        self.arriving.append(held)
        self.nbytes += held.guard.capacity

    def stay(self) -> None:
        """Hold back the block that has arrived first."""
        held = self.arriving.popleft()
        # One that would push out most others leaves before them.
        if 2 * held.guard.capacity > self.most_nbytes:
            self._held.appendleft(held)
        else:
            self._held.append(held)

    def next_to_leave(self, keep_nbytes: int) -> Held | None:
        """Return the block that leaves next, if more than ``keep_nbytes`` are held."""
        return self._held[0] if self._held and self.nbytes > keep_nbytes else None

    def forget(self) -> None:
        """Hold back nothing any more, and give nothing back."""
        self.arriving.clear()
        self._held.clear()
        self.nbytes = 0

    def leave(self) -> None:
        """Let that block go."""
        self.nbytes -= self._held.popleft().guard.capacity
