"""What of a pool's blocks is zeroed, interpreted: before anybody has them, or after."""

import ctypes
from collections import deque

from madl.hotpath.fallback.account import Accounted
from madl.hotpath.fallback.bins import LastFrees
from madl.hotpath.fallback.block import Block, Home
from madl.hotpath.shared import HotArena


class WipedReturns:
    """The home of blocks of host memory whose content goes when they are freed."""

    def __init__(self, returned: Home) -> None:
        self._returned = returned
        self._set = ctypes.memset  # globals are gone at exit

    def append(self, block: Block) -> None:
        """Take a block. Runs in finalizers; nobody else has the block meanwhile."""
        self.wipe(block)
        self._returned.append(block)

    def wipe(self, block: Block) -> None:
        """Set all of a block to zero."""
        arena = block.arena
        assert arena is not None, "blocks without bytes go nowhere"
        assert arena.address is not None, "what the host reaches has an address"
        self._set(arena.address + block.offset, 0, block.capacity)


class Wiping(Accounted):
    """The part of a ``HotPool`` that knows where a free puts what has no bin."""

    __slots__ = ("_has_bins", "_returned", "_unbinned", "_wipes_later", "_zeroes_new")

    _placed: set[Block]

    def __init__(self) -> None:
        self._returned: deque[Block] = deque()
        self._unbinned: Home = self._returned
        self._has_bins = True
        self._zeroes_new = False
        self._wipes_later = False

    def _zero(self, *, new: bool, freed: bool, at_once: bool) -> None:
        """Choose what is zeroed from now on; no block is placed yet.

        ``_zero_new`` hears of each block before it is handed out; what is freed is
        wiped by the host at once, or left to ``_unplace_when_unused``.
        """
        self._has_bins = False
        self._zeroes_new = new
        self._wipes_later = freed and not at_once
        if freed and at_once:
            self._unbinned = WipedReturns(self._returned)

    def _keep_contents(self) -> None:
        """Let what is live keep its content when it is freed."""
        last = LastFrees(self, self._returned)
        for block in self._placed:
            is_last = isinstance(block.home, LastFrees)
            block.home = last if is_last else self._returned

    def _place_of(self, block: Block) -> tuple[HotArena, int, int] | None:
        """Return arena, offset and capacity of a block; ``None`` without bytes."""
        if block.arena is None:
            return None
        return block.arena, block.offset, block.capacity
