"""What an interruption leaves behind, interpreted: blocks in no list, wrong counts.

A signal handler may raise after any call. What a thread takes it marks before the next
one, and nothing is called between the moment that a block becomes live and the moment
that its handle has it.
"""

import threading
from abc import abstractmethod
from collections import deque

from madl.hotpath.fallback.account import Account
from madl.hotpath.fallback.block import Block, Home
from madl.hotpath.fallback.hands import is_any_in_hand
from madl.hotpath.shared import BlockState

_MOST_COUNTS = 20
"""How often blocks are counted while other threads allocate and free."""


class LostBlocks:
    """What a ``HotPool`` does after an interruption."""

    __slots__ = ()

    _account: Account
    _bins: dict[int, list[Block]]
    _placed: set[Block]
    _returned: deque[Block]
    _unbinned: Home

    @abstractmethod
    def _all_states(self) -> list[BlockState]:
        """Return every placed block of the pool and its lanes."""

    def _take(self, block: Block) -> Block:
        """Mark a block that is in no list, so that an interruption does not lose it."""
        ident = threading.get_ident()
        self._account.placed_count += 1
        block.taken = ident, self._account.placed_count
        return block

    def _return_since(self, placed_before: int) -> None:
        """Lose no block that this thread took since then and has not handed out.

        For an allocation that ends with an error.
        """
        if self._account.placed_count == placed_before:
            return
        ident = threading.get_ident()
        for block in list(self._placed):
            taken = block.taken
            if taken and taken[0] == ident and taken[1] > placed_before:
                block.taken = None
                self._returned.append(block)

    def _gather_lost(self) -> bool:
        """Let every block be taken back that is free, and neither listed nor in hand.

        For a change that was interrupted. The lock is held.

        Returns:
            Whether it was done: not while a thread has a block in hand.
        """
        for _ in range(_MOST_COUNTS):
            before = self._account.total
            free = [b for b in list(self._placed) if not (b.refund or b.taken)]
            listed = {*self._returned}
            listed.update(block for home in self._bins.values() for block in home)
            lost = [block for block in free if block not in listed]
            if lost and is_any_in_hand():
                return False
            # Nothing was freed meanwhile, so what is lost is in nobody's reach.
            if self._account.total == before:
                for block in lost:
                    block.watch = None  # whose end counts a free that it never heard of
                    self._unbinned.append(block)
                return True
        return False

    def _recount(self) -> bool:
        """Count anew what is live and in bins, by looking at the blocks.

        What another thread had in hand, in a parent of this process, stays live for
        ever, like all else that it held.

        Returns:
            Whether other threads let it finish.
        """
        for _ in range(_MOST_COUNTS):
            before = self._account.total
            states = self._all_states()
            live = sum(state.nbytes for state in states if state.is_live)
            binned = sum(state.capacity for state in states if not state.is_live)
            if self._account.correct(before, live, binned):
                return True
        return False
