"""Where a freed block goes, if not to a plain list, interpreted."""

from collections import deque
from typing import Any

from madl.hotpath.fallback.block import NOWHERE, Block, Home


class LargeBin(list[Block]):
    """A bin that every miss empties, whatever the leash: large blocks hide much space.

    The lower of the two blocks freed last is on top, which keeps high pages idle.
    """

    def __init__(self, capacity: int, filled: "dict[int, LargeBin]") -> None:
        super().__init__()
        self._capacity = capacity
        self._filled = filled

    def append(self, block: Block) -> None:
        """Take a block. Runs in finalizers."""
        if self and self[-1].offset < block.offset:
            self.insert(-1, block)
        else:
            super().append(block)
        self._filled[self._capacity] = self


class LastFrees:
    """The home of a closed pool's blocks: they go back to the device."""

    def __init__(self, pool: Any, home: Home) -> None:  # noqa: ANN401  # HotPool imports this
        self._pool = pool
        self.home = home  # where they went before

    def append(self, block: Block) -> None:
        """Take a block. Runs in finalizers."""
        self.home.append(block)
        self._pool._freed_after_close()


class Unbinning:
    """How a ``HotPool`` lets blocks that are live go elsewhere when they are freed."""

    __slots__ = ()

    _bins_by_request: dict[int, tuple[list[Block], int, int]]
    _placed: set[Block]
    _returned: deque[Block]
    _unbinned: Home

    def _return_every_free(self) -> None:
        """Let no free go to a bin any more; ``_freed_after_close`` hears of each."""
        self._bins_by_request.clear()
        wiped, plain = LastFrees(self, self._unbinned), LastFrees(self, self._returned)
        for block in list(self._placed):
            if not isinstance(block.home, LastFrees):
                block.home = wiped if block.home is self._unbinned else plain

    def _unbin_all(self) -> None:
        """Let what is live go to no bin when it is freed, but wait to be taken back."""
        for block in list(self._placed):
            self._unbin_block(block)

    def _unbin_block(self, block: Block) -> None:
        if block.home is not NOWHERE and not isinstance(block.home, LastFrees):
            block.home = self._unbinned
