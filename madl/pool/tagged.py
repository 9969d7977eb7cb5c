"""Allocations that somebody watches: for a tag and its limits, or for listeners."""

import functools
from abc import abstractmethod

from madl.errors import OutOfMemoryError
from madl.errors.report import Request, TagLimit
from madl.hotpath import BLOCK_GRANULARITY, Block, HotPool, Memory
from madl.pool.events import TagScope
from madl.pool.growth import Growth
from madl.pool.reclaim import Reclaimers, reclaim
from madl.pool.tracking import BlockWatch, TagUsage
from madl.sizes import align_up


class TaggedPool(HotPool):
    """What a pool does more for an allocation that has a tag or a listener."""

    _growth: Growth

    def __init__(self) -> None:
        super().__init__()
        self._reclaimers = Reclaimers()
        self._tags: dict[str, TagUsage] = {}

    @abstractmethod
    def _find(self, asked: int, aligned: int) -> Block:
        """Return a block that is live from now on, or raise."""

    @abstractmethod
    def _out_of_memory(self, request: Request) -> OutOfMemoryError:
        """Return the error that says why a request failed."""

    @abstractmethod
    def _held(self) -> tuple[int, ...]:
        """Return what a step may lower: live, in bins, committed."""

    def _allocate_for(
        self, tag: str, bounds: dict[str, TagScope], asked: int, aligned: int
    ) -> Memory:
        """Allocate for a tag, within its limit and those of the tags above it."""
        usage = self._usage_of(tag)
        refused = None
        try:
            usage.claim(asked, bounds, self.device)
        except OutOfMemoryError as error:
            refused = error.report.tag_limit
        if refused is not None:  # here, where no other error is handled
            self._reclaim_for(usage, bounds, asked, refused)
        try:
            if bounds:
                usage.warn(bounds, self.device)
            block = self._find(asked, aligned)
            return self._hand_out_watched(block, asked, tag, usage)
        except BaseException:
            usage.give_back(asked)
            raise

    def _reclaim_for(
        self,
        usage: TagUsage,
        bounds: dict[str, TagScope],
        asked: int,
        refused: TagLimit,
    ) -> None:
        """Claim bytes of a tag once others have given up what they can, or raise."""
        request = Request(asked, align_up(asked, BLOCK_GRANULARITY), tag_limit=refused)
        if asked > refused.limit_nbytes:
            raise self._out_of_memory(request)
        attempt = functools.partial(usage.claim, asked, bounds, self.device)
        reclaim(self, request, self._reclaimers.steps(asked), attempt)

    def _hand_out_watched(
        self, block: Block, asked: int, tag: str | None, usage: TagUsage | None
    ) -> Memory:
        try:
            watching = BlockWatch(asked, tag, usage, stream_number=self._stream_number)
        except BaseException:  # a listener's
            self._hand_out(block, asked, None).free()
            raise
        memory = self._hand_out(block, asked, watching)
        watching.count(memory.capacity - asked)
        return memory

    def _usage_of(self, tag: str) -> TagUsage:
        try:
            return self._tags[tag]  # waits for no other thread, as get() may
        except KeyError:
            usage = TagUsage(self._growth.budget.device, tag)
            return self._tags.setdefault(tag, usage)
