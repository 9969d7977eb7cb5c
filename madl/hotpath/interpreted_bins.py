"""Where a freed block goes, if not to a plain list, interpreted."""

from typing import Any

from madl.hotpath.interpreted_block import Block


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

    def __init__(self, pool: Any) -> None:  # noqa: ANN401  # HotPool imports this
        self._pool = pool

    def append(self, block: Block) -> None:
        """Take a block. Runs in finalizers."""
        self._pool._returned.append(block)
        self._pool._freed_after_close()
