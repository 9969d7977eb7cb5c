"""The way of an allocation that finds nothing: growing, reclaiming, giving up.

What is tried before a request fails is a list of steps. Between two of them no lock
is held, since a step may free, allocate, or wait for a thread that does.
"""

import functools
import threading
from abc import abstractmethod
from collections.abc import Iterator
from typing import cast

from madl import stacks
from madl.backends.counted import CountedBackend
from madl.errors import OutOfMemoryError
from madl.errors.report import Request
from madl.hotpath import BLOCK_GRANULARITY, Block, HotArena, Memory
from madl.hotpath.reentrancy import is_inside
from madl.pool import events
from madl.pool.arena import Arena
from madl.pool.explain import explain, look_inside
from madl.pool.growth import Growth
from madl.pool.lock import LockedPool
from madl.pool.options import (
    LARGEST_CAPACITY_NBYTES,
    LEASH_DIVISOR,
    SMALL_NBYTES,
    PoolOptions,
)
from madl.pool.reclaim import Step, reclaim
from madl.pool.tagged import TaggedPool
from madl.pool.tracking import effective_tag
from madl.pool.zeroing import Zeroing
from madl.sizes import align_up, check_alignment, parse_nbytes


class SlowPool(LockedPool, TaggedPool):
    """What happens to a request that the hot path does not serve by itself."""

    _stream: object = None

    def __init__(self, backend: CountedBackend, options: PoolOptions) -> None:
        super().__init__()
        self._backend = backend
        self._options = options
        self.device = backend.device
        self.capabilities = backend.capabilities
        if options.limit_nbytes is not None:
            self._most_nbytes = min(self._most_nbytes, options.limit_nbytes)
        if options.has_bands:
            self._small_nbytes = SMALL_NBYTES
        self._growth = self._make_growth(
            cast("tuple[list[Arena], list[Arena]]", self._bands)
        )
        self._zeroing = Zeroing(backend, options.zero)
        if options.zero:
            self._zero(
                new=self._zeroing.is_of_new,
                freed=self._zeroing.is_of_freed,
                at_once=self._zeroing.is_by_host,
            )

    def _make_growth(self, bands: tuple[list[Arena], list[Arena]]) -> Growth:
        return Growth(self._backend, bands, self._options)

    @abstractmethod
    def _lane_of(self, stream: object) -> "SlowPool":
        """Return the lane of a stream, or raise where there are none."""

    @abstractmethod
    def _take_back_all(self) -> None:
        """Give all that is free back to the indexes, where it coalesces."""

    @abstractmethod
    def _take_back_pending(self, *, is_lost: bool = False) -> None:
        """Do so for what other streams used."""

    @abstractmethod
    def _wait_for_streams(self) -> None:
        """Wait for all queued work, so that all that is free can be used anywhere."""

    def _keep_damage(self) -> None:
        """In debug mode, look for damage and keep what is found. The lock is held."""

    def _tell_damage(self) -> None:
        """In debug mode, raise what was found and nobody was told of yet."""

    def _allocate_with(
        self,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> Memory:
        if stream is not None and (lane := self._lane_of(stream)) is not self:
            if alignment is None and tag is None:
                return lane.allocate(nbytes)
            return lane.allocate(nbytes, alignment=alignment, tag=tag)
        asked = parse_nbytes(nbytes)
        aligned = check_alignment(alignment)
        tag, bounds = effective_tag(tag)
        if asked > self._most_nbytes:
            capacity = align_up(asked, BLOCK_GRANULARITY)
            raise self._out_of_memory(Request(asked, capacity))
        placed_before = self._placed_count
        try:
            if tag is not None:
                return self._allocate_for(tag, bounds, asked, aligned)
            block = self._find(asked, aligned)
            if not (events.listeners or stacks.depth):
                return self._hand_out(block, asked, None)
            return self._hand_out_watched(block, asked, None, None)
        except BaseException:
            self._return_since(placed_before)
            if self._is_closed:
                self._freed_after_close()
            raise

    def _find(self, asked: int, aligned: int) -> Block:
        if aligned <= BLOCK_GRANULARITY or asked == 0:
            return self._miss(asked)
        # A bin promises no more than the usual alignment, so it is passed by.
        block = self._place_slowly(asked, align_up(asked, BLOCK_GRANULARITY), aligned)
        if self._zeroing.is_of_new:
            self._zero_new(block)
        return block

    def _zero_new(self, block: Block) -> None:
        self._zeroing.zero_new(self._place_of(block), self._growth)

    def _is_wiped(self, block: Block) -> bool:
        """Wipe a free block, if the pool leaves that to the device."""
        return self._zeroing.wipe(self._place_of(block), self._growth)

    def _place_apart(self, nbytes: int, alignment: int = 0) -> Block:
        """Place a block in the middle of another call, where nothing may be touched."""
        parse_nbytes(nbytes)
        self._refuse_if_closed()
        capacity = align_up(nbytes, self._backend.granularity)
        try:
            return self._place_alone(capacity, alignment)
        except OutOfMemoryError as refused:
            raise self._out_of_memory(
                Request(nbytes, capacity, native=refused.report.native)
            ) from None

    def _place_alone(self, capacity: int, alignment: int) -> Block:
        """Place a block in a reservation of its own, or raise."""
        capacity = align_up(capacity, self._backend.granularity)
        arena, offset = self._growth.apart.place(capacity, alignment)
        return self._block_at(arena, offset, capacity, is_binned=False)

    def _place_slowly(self, nbytes: int, capacity: int, alignment: int) -> Block:
        self._refuse_if_closed()
        if capacity > LARGEST_CAPACITY_NBYTES:
            parse_nbytes(nbytes)
            raise self._out_of_memory(Request(nbytes, capacity))
        if is_inside():
            return self._place_apart(capacity, alignment)
        request = Request(nbytes, capacity)
        if self._growth.budget.is_below(capacity):
            raise self._out_of_memory(request)
        binned = self._binned_nbytes
        attempt = functools.partial(self._try_to_place, capacity, alignment)
        try:
            return attempt()
        except OutOfMemoryError as error:
            native = error.report.native
        flushed = max(binned - self._binned_nbytes, 0)
        request = request._replace(native=native, tried=(("flush", flushed),))
        return reclaim(self, request, self._steps(capacity), attempt)

    def _held(self) -> tuple[int, ...]:
        """Return what a step may lower: live, in bins, committed."""
        committed = self._growth.budget.committed_nbytes
        return self._live_nbytes, self._binned_nbytes, committed

    def _steps(self, capacity: int) -> Iterator[Step]:
        """Yield what to try, in order, before a request fails."""
        if self._growth.order.is_ordered:
            yield Step("waiting for the device", self._wait_for_streams)
        if not self._options.recycle:  # else idle pages have been used already
            room = (self._options.limit_nbytes or capacity) - capacity
            yield Step("trim", functools.partial(self._trim, room))
        yield from self._reclaimers.steps(capacity)

    def _try_to_place(self, capacity: int, alignment: int) -> Block:
        """Place a block after all that is free has been joined, or raise."""
        block = self._locked(functools.partial(self._place_now, capacity, alignment))
        if self._growth.budget.has_news:
            self._tell_news(block)
        return block

    def _place_now(self, capacity: int, alignment: int) -> Block:
        self._refuse_if_closed()  # again: a reclaimer may have closed it
        self._take_back_all()
        if self._options.pooling:
            block = self._place_among_others(capacity, alignment)
        else:
            block = self._place_alone(capacity, alignment)
        self._growth.budget.sample(self._allocation_count)
        return block

    def _tell_news(self, block: Block) -> None:
        """Warn of soft limits; where that raises, the block goes back first."""
        budget = self._growth.budget
        try:
            budget.soft.tell(f"{self.device}: a pool")
            budget.device.soft.tell(f"{self.device}: all pools together")
        except BaseException:
            self._locked(lambda: self._unplace(block))
            raise

    def _place_among_others(self, capacity: int, alignment: int) -> Block:
        growth = self._growth
        arena, offset = growth.place(capacity, alignment)
        self._leash_nbytes = growth.budget.committed_nbytes // LEASH_DIVISOR
        is_own = growth.is_own(arena)
        if not is_own:
            self._users[arena, offset] = [growth.order]
        return self._block_at(
            arena, offset, capacity, is_binned=is_own and alignment == 0
        )

    def _release_apart(self, arena: HotArena) -> None:
        self._growth.apart.release(cast("Arena", arena))

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            # A free that found the lock taken, on the way here, has left it to us.
            self._freed_after_close()
            raise ValueError(
                f"a closed pool of {self.device} allocates nothing; make a new Pool"
            )

    def _out_of_memory(self, request: Request) -> OutOfMemoryError:
        inside = None
        if self._lock_holder == threading.get_ident():
            # A signal handler that lets this pass will have interrupted what it is in.
            self._was_interrupted = True
        elif not is_inside():
            inside = self._locked(
                lambda: look_inside(self._head, self._growth, request.capacity)
            )
        return explain(request, self._head, self._growth, self._options, inside)

    def _stop_placing(self) -> None:
        """Hand out nothing any more, and let what is freed go back to the device."""
        self._growth.stop_placing(cast("tuple[list[Arena], list[Arena]]", self._bands))
        self._return_every_free()

    def _trim(self, keep: int) -> int:
        return self._locked(lambda: self._trim_now(keep))

    def _trim_now(self, keep: int) -> int:
        before = self._growth.budget.committed_nbytes
        self._take_back_all()
        # After it: what is queued and freed meanwhile stays in its bin.
        self._growth.let_go()
        self._take_back_pending()
        if self._zeroing.waits:
            self._growth.let_go()  # again: more may have been told to be wiped
        self._growth.trim(keep)
        return before - self._growth.budget.committed_nbytes
