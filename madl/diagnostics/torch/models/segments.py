"""PyTorch's allocator in its default form: segments of fixed sizes, kept as a cache.

Written from what PyTorch documents of it: requests up to 1 MiB share segments of 2 MiB,
those up to 10 MiB segments of 20 MiB, larger ones have their own. Best fit; what is
cached is given back when the device has no more.
"""

from collections import defaultdict
from collections.abc import Iterable

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
    UNLIMITED,
    AllocatorSettings,
    block_nbytes,
    segment_nbytes,
)

_SEGMENT_DISTANCE = 1 << 20
"""A gap between segments, so that blocks of two are never neighbours."""


class SegmentsModel:
    """The default allocator, with the options that change what it caches."""

    def __init__(
        self, settings: AllocatorSettings, *, capacity_nbytes: int = UNLIMITED
    ) -> None:
        self._settings = settings
        self._reserve = Reserve(capacity_nbytes)
        self._pools: defaultdict[tuple[int, bool], FreeBlocks]
        self._pools = defaultdict(FreeBlocks)
        self._live: dict[int, ModelBlock] = {}
        self._next_address = 0
        self._allocations = 0

    @property
    def peak_reserved_nbytes(self) -> int:
        """The high-water mark of bytes taken from the device."""
        return self._reserve.peak_nbytes

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
        if not self._reserve.has(nbytes):
            self._release_large_enough(pool, nbytes)
        if not self._reserve.has(nbytes):
            self._release(self._cached_segments())
        if not self._reserve.has(nbytes):
            raise ReserveRefusedError
        self._reserve.take(nbytes)
        block = ModelBlock(self._next_address, nbytes, pool)
        self._next_address += nbytes + _SEGMENT_DISTANCE
        return block

    def _collect_garbage(self, nbytes: int) -> None:
        """Above the threshold, give back segments that lie unused for long."""
        threshold = self._settings.garbage_collection_threshold
        if not threshold or self._reserve.capacity_nbytes == UNLIMITED:
            return
        most = int(threshold * self._reserve.capacity_nbytes)
        excess = self._reserve.nbytes + nbytes - most
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
        whole = [block for block in pool.blocks() if block.is_whole_segment]
        whole = [block for block in whole if block.nbytes >= most]
        for block in reversed(whole):
            if self._reserve.has(nbytes):
                return
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
            self._reserve.give_back(block.nbytes)
