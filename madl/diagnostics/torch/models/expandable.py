"""PyTorch's allocator with ``expandable_segments``: one range a pool, grown in pages.

Written from what PyTorch documents of it: a segment is a large range of addresses
whose end moves as memory is mapped behind it, in pages of 2 MiB for small blocks and
of 20 MiB for large ones. At the limit, free pages are unmapped.
"""

from madl.diagnostics.torch.models.blocks import (
    FreeBlocks,
    ModelBlock,
    Reserve,
    ReserveRefusedError,
)
from madl.diagnostics.torch.models.settings import (
    BLOCK_NBYTES,
    LARGE_SEGMENT_NBYTES,
    SMALL_NBYTES,
    SMALL_SEGMENT_NBYTES,
    UNLIMITED,
    AllocatorSettings,
    block_nbytes,
)
from madl.sizes import align_up

_ADDRESSES_NBYTES = 1 << 60
"""Of one range: it never ends before the device does."""


class ExpandableModel:
    """Two ranges for each stream, one for small blocks and one for large ones."""

    def __init__(
        self, settings: AllocatorSettings, *, capacity_nbytes: int = UNLIMITED
    ) -> None:
        self._settings = settings
        self._reserve = Reserve(capacity_nbytes)
        self._ranges: dict[tuple[int, bool], _Range] = {}
        self._live: dict[int, tuple[_Range, ModelBlock]] = {}

    @property
    def peak_reserved_nbytes(self) -> int:
        """The high-water mark of mapped bytes."""
        return self._reserve.peak_nbytes

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
        if not self._reserve.has(where.missing_nbytes(wanted)):
            for one in self._ranges.values():
                self._reserve.give_back(one.unmap_free_pages())
        missing = where.missing_nbytes(wanted)  # what was free before may be gone
        if not self._reserve.has(missing):
            raise ReserveRefusedError
        self._reserve.take(missing)
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
