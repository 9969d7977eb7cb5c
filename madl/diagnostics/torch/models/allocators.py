"""PyTorch's allocator, modelled: segments of fixed sizes, or expandable segments.

Written from what PyTorch documents of it. By default requests up to 1 MiB share
segments of 2 MiB, those up to 10 MiB segments of 20 MiB, larger ones have their own.
Best fit; what is cached is given back when the device has no more.

With ``expandable_segments`` a segment is a large range of addresses whose end moves as
memory is mapped behind it, in pages of 2 MiB for small blocks and of 20 MiB for large
ones. At the limit, free pages are unmapped.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional

from madl.diagnostics.torch.models.settings import (
    BLOCK_NBYTES,
    LARGE_SEGMENT_NBYTES,
    SMALL_NBYTES,
    SMALL_SEGMENT_NBYTES,
    UNLIMITED,
    AllocatorSettings,
    block_nbytes,
    segment_nbytes,
)
from madl.sizes import align_up

_SEGMENT_DISTANCE = 1 << 20
"""A gap between segments, so that blocks of two are never neighbours."""
_ADDRESSES_NBYTES = 1 << 60
"""Of one expandable segment: it never ends before the device does."""


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


class _Model:
    """What both forms have in common: they count what they take from the device."""

    def __init__(self, settings: AllocatorSettings, capacity_nbytes: int) -> None:
        self._settings = settings
        self._capacity_nbytes = capacity_nbytes
        self._reserved_nbytes = 0
        self.peak_reserved_nbytes = 0
        """The high-water mark of bytes taken from the device."""

    def _has_left(self, nbytes: int) -> bool:
        return self._reserved_nbytes + nbytes <= self._capacity_nbytes

    def _take(self, nbytes: int) -> None:
        """Take bytes from the device, or raise ReserveRefusedError."""
        if not self._has_left(nbytes):
            raise ReserveRefusedError
        self._reserved_nbytes += nbytes
        self.peak_reserved_nbytes = max(
            self.peak_reserved_nbytes, self._reserved_nbytes
        )


class SegmentsModel(_Model):
    """The default allocator, with the options that change what it caches."""

    def __init__(self, settings: AllocatorSettings, capacity_nbytes: int) -> None:
        super().__init__(settings, capacity_nbytes)
        self._pools = defaultdict[tuple[int, bool], FreeBlocks](FreeBlocks)
        self._live: dict[int, ModelBlock] = {}
        self._next_address = 0
        self._allocations = 0

    def allocate(self, allocation: int, nbytes: int, stream: int) -> None:
        """Place a request in the smallest cached block that fits, or a new segment."""
        self._allocations += 1
        wanted = block_nbytes(nbytes, self._settings)
        is_small = wanted <= SMALL_NBYTES
        pool = self._pools[stream, is_small]
        block = self._cached(pool, wanted)
        if block is None:
            block = self._new_segment(pool, wanted)
        if self._is_split(block.nbytes, wanted, is_small=is_small):
            rest = block.split(wanted)
            rest.freed_at = block.freed_at
            pool.add(rest)
        self._live[allocation] = block

    def free(self, allocation: int) -> None:
        """Cache a block again, joined with its free neighbours."""
        block = self._live.pop(allocation)
        block.pool.free(block).freed_at = self._allocations

    def _cached(self, pool: FreeBlocks, wanted: int) -> ModelBlock | None:
        block = pool.best(wanted)
        if block is None or not self._may_use(block.nbytes, wanted):
            return None
        pool.remove(block)
        return block

    def _may_use(self, nbytes: int, wanted: int) -> bool:
        """A block that is not split is kept for requests of about its size."""
        most = self._settings.max_split_nbytes
        if wanted < most:
            return nbytes < most
        return nbytes < wanted + LARGE_SEGMENT_NBYTES

    def _is_split(self, nbytes: int, wanted: int, *, is_small: bool) -> bool:
        if is_small:
            return nbytes - wanted >= BLOCK_NBYTES
        is_allowed = wanted < self._settings.max_split_nbytes
        return is_allowed and nbytes - wanted > SMALL_NBYTES

    def _new_segment(self, pool: FreeBlocks, wanted: int) -> ModelBlock:
        nbytes = segment_nbytes(wanted)
        self._collect_garbage(nbytes)
        if not self._has_left(nbytes):
            self._release_large_enough(pool, nbytes)
        if not self._has_left(nbytes):
            self._release(self._cached_segments())
        self._take(nbytes)
        block = ModelBlock(self._next_address, nbytes, pool)
        self._next_address += nbytes + _SEGMENT_DISTANCE
        return block

    def _collect_garbage(self, nbytes: int) -> None:
        """Above the threshold, give back segments that lie unused for long."""
        threshold = self._settings.garbage_collection_threshold
        if not threshold or self._capacity_nbytes == UNLIMITED:
            return
        most = int(threshold * self._capacity_nbytes)
        excess = self._reserved_nbytes + nbytes - most
        for block in sorted(self._cached_segments(), key=lambda block: block.freed_at):
            if excess <= 0:
                return
            excess -= block.nbytes
            self._release([block])

    def _release_large_enough(self, pool: FreeBlocks, nbytes: int) -> None:
        """Before all of the cache, give back what ``max_split`` kept whole."""
        most = self._settings.max_split_nbytes
        if most == UNLIMITED:
            return
        for block in reversed(pool.blocks()):
            if self._has_left(nbytes):
                return
            if block.is_whole_segment and block.nbytes >= most:
                self._release([block])

    def _cached_segments(self) -> list[ModelBlock]:
        return [
            block
            for pool in self._pools.values()
            for block in pool.blocks()
            if block.is_whole_segment
        ]

    def _release(self, segments: Iterable[ModelBlock]) -> None:
        for block in segments:
            block.pool.remove(block)
            self._reserved_nbytes -= block.nbytes


class ExpandableModel(_Model):
    """Two ranges for each stream, one for small blocks and one for large ones."""

    def __init__(self, settings: AllocatorSettings, capacity_nbytes: int) -> None:
        super().__init__(settings, capacity_nbytes)
        self._ranges: dict[tuple[int, bool], _Range] = {}
        self._live: dict[int, tuple[_Range, ModelBlock]] = {}

    def allocate(self, allocation: int, nbytes: int, stream: int) -> None:
        """Place a request in the smallest free block that fits, or map more."""
        wanted = block_nbytes(nbytes, self._settings)
        where = self._range(stream, is_small=wanted <= SMALL_NBYTES)
        block = where.best(wanted)
        if block is None:
            block = self._grow(where, wanted)
        where.free_blocks.remove(block)
        if block.nbytes - wanted >= BLOCK_NBYTES:
            where.free_blocks.add(block.split(wanted))
        self._live[allocation] = where, block

    def free(self, allocation: int) -> None:
        """Join a block with its free neighbours."""
        where, block = self._live.pop(allocation)
        where.free_blocks.free(block)

    def _range(self, stream: int, *, is_small: bool) -> "_Range":
        if (stream, is_small) not in self._ranges:
            page = SMALL_SEGMENT_NBYTES if is_small else LARGE_SEGMENT_NBYTES
            self._ranges[stream, is_small] = _Range(page)
        return self._ranges[stream, is_small]

    def _grow(self, where: "_Range", wanted: int) -> ModelBlock:
        if not self._has_left(where.missing_nbytes(wanted)):
            for one in self._ranges.values():
                self._reserved_nbytes -= one.unmap_free_pages()
        self._take(where.missing_nbytes(wanted))  # what was free before may be gone
        return where.map(wanted)


class _Range:
    """Addresses in a row: live, free, or with no memory behind them."""

    def __init__(self, page_nbytes: int) -> None:
        self._page_nbytes = page_nbytes
        self.free_blocks = FreeBlocks()
        everything = ModelBlock(0, _ADDRESSES_NBYTES, self.free_blocks, is_hole=True)
        self._unmapped = [everything]
        """Lowest first; each starts and ends where a page does."""

    def best(self, wanted: int) -> ModelBlock | None:
        """Return the free block that fits best.

        One before a hole counts as large as it can grow, so it is taken last.
        """
        found: ModelBlock | None = None
        for block in self.free_blocks.fitting(wanted):
            if found is not None and self._widest(block) >= self._widest(found):
                break
            found = block
        return found

    def _widest(self, block: ModelBlock) -> int:
        after = block.following
        if after is None or not after.is_hole:
            return block.nbytes
        return block.nbytes + after.nbytes

    def missing_nbytes(self, wanted: int) -> int:
        """Return what has to be mapped for a block that fits nowhere."""
        return self._find(wanted)[1]

    def map(self, wanted: int) -> ModelBlock:
        """Map pages at the lowest place that is wide enough; return a free block."""
        hole, nbytes = self._find(wanted)
        at = self._unmapped.index(hole)
        if hole.nbytes == nbytes:
            del self._unmapped[at]
        else:
            self._unmapped[at] = hole.split(nbytes)
            self._unmapped[at].is_hole = True
        hole.is_hole = False
        return self.free_blocks.free(hole)

    def unmap_free_pages(self) -> int:
        """Take the memory from wholly free pages; return how much that was."""
        nbytes = 0
        for block in self.free_blocks.blocks():
            start = align_up(block.address, self._page_nbytes)
            end = (block.address + block.nbytes) // self._page_nbytes
            end *= self._page_nbytes
            if start < end:
                self._unmap(block, start, end)
                nbytes += end - start
        return nbytes

    def _find(self, wanted: int) -> tuple[ModelBlock, int]:
        """Return what to map from the start of, and how much."""
        for hole in self._unmapped:
            before = hole.previous
            there = before.nbytes if before is not None and before.is_free else 0
            missing = align_up(wanted - there, self._page_nbytes)
            if missing <= hole.nbytes:
                return hole, missing
        raise AssertionError("the last one never ends")

    def _unmap(self, block: ModelBlock, start: int, end: int) -> None:
        self.free_blocks.remove(block)
        if block.address + block.nbytes > end:
            self.free_blocks.add(block.split(end - block.address))
        hole = block
        if start > block.address:
            hole = block.split(start - block.address)
            self.free_blocks.add(block)
        self._insert(hole)

    def _insert(self, hole: ModelBlock) -> None:
        """Add a hole, joined with the holes beside it."""
        after, before = hole.following, hole.previous
        hole.is_hole = True
        if after is not None and after.is_hole:
            self._unmapped.remove(after)
            hole.absorb_following()
        if before is not None and before.is_hole:
            before.absorb_following()
            return
        self._unmapped.append(hole)
        self._unmapped.sort(key=lambda one: one.address)
