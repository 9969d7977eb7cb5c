"""Who keeps a block, interpreted: its handle alone, or the root of its views too.

Each change is a few stores between which nothing is called: no other thread and no
signal handler comes in, so a block has one keeper at every moment.
"""

import sys
from typing import TYPE_CHECKING, Any, Self

from madl.hotpath.shared import HotArena

if TYPE_CHECKING:
    from madl.hotpath.fallback.block import Block
    from madl.hotpath.fallback.root import Root

references = property(sys.getrefcount)
"""How many references an object has. An attribute: after a call signals are handled."""


class _Unviewed:
    """Stands for a root that only its handle refers to."""

    references = references

    _root: Self

    @classmethod
    def handle(cls) -> Self:
        """Return a handle with such a root."""
        made = cls()
        made._root = cls()
        return made


def _references(handle: _Unviewed) -> int:
    return handle._root.references


_REFERENCES_WITHOUT_VIEWS = _references(_Unviewed.handle())
"""To a root. Measured: how many a call itself holds is each Python's own business."""


class Keeping:
    """What a handle has, and what changes who keeps its block."""

    __slots__ = ("_block", "_nbytes", "_pool", "_root")

    _pool: Any  # the HotPool, which is not known here
    _block: "Block | None"
    _nbytes: int
    # None, or what keeps the block for views and slices: see memory.py.
    _root: Any

    def _keep_by(self, root: "Root") -> "Root | None":
        """Let a root hold the block through a keeper of its own; the first wins.

        Returns:
            The one that holds it; ``None`` where the handle has no block any more, or
            another one than the root shows.
        """
        keeper = root.keeper = self._pool._slice_of(None, self._nbytes)
        address, nbytes = root.address, root.nbytes
        block = self._block
        if block is None:
            return None
        if nbytes:
            arena = block.arena
            if nbytes != self._nbytes or arena is None or arena.address is None:
                return None
            if arena.address + block.offset != address:
                return None
        if self._root is None:
            keeper._block = block
            self._root = root
        kept: Root = self._root
        return kept

    def _detach(self) -> bool:
        """Make the handle the block's only keeper again, unless somebody has a view.

        Returns:
            Whether it is.
        """
        if self._root is None:
            return True
        keeper = self._root.keeper
        # Out of reach while it is counted, for threads that run at the same time. In no
        # variable: those of a frame that is traced are counted too.
        keeper._root, self._root = self._root, None
        if keeper._root.references > _REFERENCES_WITHOUT_VIEWS:
            self._root, keeper._root = keeper._root, None
            return False
        keeper._block = None
        keeper._root = None
        return True

    def _exchange(self, other: "Self", arena: HotArena | None, offset: int) -> bool:
        """Swap blocks and sizes with another handle of the same pool.

        Returns:
            Whether it was done: not while somebody has a view, nor where the block lies
            elsewhere by now, or was freed.
        """
        if not (other._detach() and self._detach()):
            return False
        # From here on nothing is called.
        block = self._block
        if block is None or self._root is not None or other._root is not None:
            return False
        if block.arena is not arena or block.offset != offset:
            return False
        self._block, other._block = other._block, block
        self._pool, other._pool = other._pool, self._pool  # a lane may be merged by now
        self._nbytes, other._nbytes = other._nbytes, self._nbytes
        return True
