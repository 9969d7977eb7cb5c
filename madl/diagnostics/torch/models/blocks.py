"""What a model of an allocator is made of: linked blocks, a free list, a reserve."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional


@dataclass(slots=True, eq=False)
class ModelBlock:
    """A part of a segment, between its neighbours."""

    address: int
    nbytes: int
    pool: "FreeBlocks"
    previous: Optional["ModelBlock"] = None
    following: Optional["ModelBlock"] = None
    is_free: bool = False
    is_hole: bool = False
    """Addresses only, with no memory behind them."""
    freed_at: int = 0
    """Counts allocations: when the block was last put into the cache."""

    @property
    def is_whole_segment(self) -> bool:
        """Whether nothing was ever split off it, or all of it was joined again."""
        return self.previous is None and self.following is None

    def split(self, nbytes: int) -> "ModelBlock":
        """Keep the first ``nbytes``; return the rest."""
        rest = ModelBlock(
            self.address + nbytes, self.nbytes - nbytes, self.pool, self, self.following
        )
        if self.following is not None:
            self.following.previous = rest
        self.following = rest
        self.nbytes = nbytes
        return rest

    def absorb_following(self) -> None:
        """Join with the block that comes next, which is not used any more."""
        gone = self.following
        assert gone is not None, "the caller has looked"
        self.nbytes += gone.nbytes
        self.following = gone.following
        if gone.following is not None:
            gone.following.previous = self


class FreeBlocks:
    """The cached blocks of one stream and one kind, smallest first."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        self._at: dict[int, ModelBlock] = {}

    def add(self, block: ModelBlock) -> None:
        """Cache a block."""
        block.is_free = True
        insort(self._order, (block.nbytes, block.address))
        self._at[block.address] = block

    def remove(self, block: ModelBlock) -> None:
        """Take a block out."""
        block.is_free = False
        del self._order[bisect_left(self._order, (block.nbytes, block.address))]
        del self._at[block.address]

    def best(self, nbytes: int) -> ModelBlock | None:
        """Return the smallest block of at least ``nbytes``, the lowest of equals."""
        return next(self.fitting(nbytes), None)

    def fitting(self, nbytes: int) -> Iterator[ModelBlock]:
        """Yield the blocks of at least ``nbytes``, smallest first."""
        for place in range(bisect_left(self._order, (nbytes, -1)), len(self._order)):
            yield self._at[self._order[place][1]]

    def blocks(self) -> list[ModelBlock]:
        """Return all blocks, smallest first."""
        return [self._at[address] for _, address in self._order]

    def free(self, block: ModelBlock) -> ModelBlock:
        """Join a block with its free neighbours, cache it, and return it."""
        if block.following is not None and block.following.is_free:
            self.remove(block.following)
            block.absorb_following()
        before = block.previous
        if before is not None and before.is_free:
            self.remove(before)
            before.absorb_following()
            block = before
        self.add(block)
        return block


class ReserveRefusedError(Exception):
    """The device has no more, also after what is cached was given back."""


class Reserve:
    """Bytes taken from a device that has no more than ``capacity_nbytes``."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.nbytes = 0
        self.peak_nbytes = 0

    def has(self, nbytes: int) -> bool:
        """Return whether so many bytes are left."""
        return self.nbytes + nbytes <= self.capacity_nbytes

    def take(self, nbytes: int) -> None:
        """Take bytes that are there."""
        self.nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def give_back(self, nbytes: int) -> None:
        """Give bytes back."""
        self.nbytes -= nbytes
