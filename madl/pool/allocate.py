"""The slow path of an allocation: what happens when its bin is empty.

It grows, reclaims, and gives up with a report. Before a request fails, a list of steps
is tried; between two of them no lock is held, since a step may free, allocate, or wait
for a thread that does.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from madl import stacks
from madl.backends.protocol import Backend
from madl.errors import BackendError, OutOfMemoryError
from madl.errors.report import Request
from madl.hotpath import (
    BLOCK_GRANULARITY,
    Bins,
    Block,
    HotPool,
    Memory,
    hand_out,
    head_of,
    lane_of,
    place_of,
    pool_of,
    unbin,
)
from madl.hotpath.reentrancy import locks_held
from madl.pool import tracking
from madl.pool.arena import Arena
from madl.pool.explain import explain, look_inside
from madl.pool.growth import Growth
from madl.pool.options import LARGEST_CAPACITY_NBYTES, LEASH_DIVISOR, SMALL_NBYTES
from madl.pool.paging import Bands
from madl.pool.parts import Parts
from madl.pool.reclaim import Step, reclaim
from madl.pool.tracking import BlockWatch, TagScope, TagUsage, effective_tag
from madl.sizes import align_up, check_alignment, parse_nbytes


class Lane:
    """One stream's part of a pool: its bins, its arenas, and its slow path.

    The hot path calls ``allocate_with``, ``place_slowly``, ``place_dedicated``,
    ``take_back``, ``zero_new`` and ``freed_after_close``.
    """

    is_forgotten = False
    """Whether its stream has been merged into the default one."""

    def __init__(
        self, parts: Parts, bins: Bins, growth: Growth, stream: object = None
    ) -> None:
        self.parts = parts
        self.bins = bins
        self.growth = growth
        self.stream = stream
        options, zeroing = parts.options, parts.zeroing
        self._largest_nbytes = bins.most_nbytes
        if options.limit_nbytes is not None:
            self._largest_nbytes = min(bins.most_nbytes, options.limit_nbytes)
        bins.most_nbytes = -1 if parts.debug else self._largest_nbytes
        if options.has_bands:
            bins.small_nbytes = SMALL_NBYTES
        if options.zero or parts.debug:
            bins.pass_by(
                zeroes_new=zeroing.is_of_new,
                wipes_freed=zeroing.is_of_freed and zeroing.is_by_host,
                asks=zeroing.waits or parts.debug is not None,
            )

    def allocate_with(
        self,
        pool: HotPool,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> Memory:
        """Allocate where an argument, a tag or a listener needs more than a bin."""
        parts = self.parts
        if stream is not None or self.is_forgotten:
            wanted = self.stream if stream is None else stream
            other = parts.streams.pool_of(wanted, head_of(pool))
            if other is not pool:
                return _allocate_from(other, nbytes, alignment, tag)
        asked = parse_nbytes(nbytes)
        aligned = check_alignment(alignment)
        tag, bounds = effective_tag(tag)
        if asked > self._largest_nbytes:
            capacity = align_up(asked, BLOCK_GRANULARITY)
            raise self.out_of_memory(Request(asked, capacity))
        placed_before = parts.shared.placed_count
        try:
            if tag is not None:
                return self._allocate_for(pool, tag, bounds, asked, aligned)
            block = self._find(asked, aligned)
            if tracking.listeners or stacks.depth or (asked and parts.debug):
                return self._hand_out_watched(pool, block, asked, None, None)
            return hand_out(pool, block, asked, None)
        except BaseException:
            self.bins.return_since(placed_before)
            if parts.lock.is_closed:
                self.freed_after_close()
            raise

    def _allocate_for(
        self,
        pool: HotPool,
        tag: str,
        bounds: dict[str, TagScope],
        asked: int,
        aligned: int,
    ) -> Memory:
        """Allocate for a tag, within its limit and those of the tags above it."""
        usage = self.parts.tags.claim(tag, bounds, asked, self)
        try:
            if bounds:
                usage.warn(bounds, self.parts.backend.device)
            block = self._find(asked, aligned)
            return self._hand_out_watched(pool, block, asked, tag, usage)
        except BaseException:
            usage.give_back(asked)
            raise

    def _find(self, asked: int, aligned: int) -> Block:
        """Return a block of a bin, of the index, or of pages that are found for it."""
        debug = self.parts.debug
        if asked == 0 or (aligned <= BLOCK_GRANULARITY and debug is None):
            return self.bins.find(asked, self)
        if debug is not None:
            alignment = aligned if aligned > BLOCK_GRANULARITY else 0
            if self.parts.lock.is_mine:
                return self.place_dedicated(debug.guarded_capacity(asked), alignment)
            return self.place_slowly(asked, debug.capacity_of(asked), alignment)
        # A bin promises no more than the usual alignment, so it is passed by.
        block = self.place_slowly(asked, align_up(asked, BLOCK_GRANULARITY), aligned)
        if self.parts.zeroing.is_of_new:
            self.zero_new(block)
        return block

    def _hand_out_watched(
        self,
        pool: HotPool,
        block: Block,
        asked: int,
        tag: str | None,
        usage: TagUsage | None,
    ) -> Memory:
        debug = self.parts.debug if asked else None
        make = BlockWatch if debug is None else debug.watch
        try:
            watch = make(asked, tag, usage, stream_number=self.bins.stream_number)
        except BaseException:  # a listener's
            hand_out(pool, block, asked, None).free()
            raise
        memory = hand_out(pool, block, asked, watch)
        if debug is not None:
            debug.guard(memory, watch, self.growth, self.stream)
        watch.count(memory.capacity - asked)
        return memory

    @property
    def backend(self) -> Backend:
        """The backend of the pool's device."""
        return self.parts.backend.backend

    def record_stream(self, memory: Memory, stream: object) -> None:
        """Keep a block, once it is free, from reuse while a stream may use it."""
        parts = self.parts
        other = lane_of(parts.streams.pool_of(stream, head_of(pool_of(memory))))
        placed = place_of(memory)
        if other is self or placed is None or placed[0] is None:
            return
        key, order = (placed[0], placed[1]), cast("Lane", other).growth.order

        def add_user() -> None:
            users = self.bins.users.setdefault(key, [])
            if order not in users:
                users.append(order)
            unbin(memory)

        parts.lock.hold(add_user)

    def zero_new(self, block: Block) -> None:
        """Set a block to zero that is about to be handed out, or raise."""
        self.parts.zeroing.zero_new(self.bins.place_of(block), self.growth)

    def is_wiped(self, block: Block) -> bool:
        """Wipe a free block, if the pool leaves that to the device."""
        return self.parts.zeroing.wipe(self.bins.place_of(block), self.growth)

    def place_dedicated(self, nbytes: int, alignment: int = 0) -> Block:
        """Place a block in a reservation of its own: for a re-entrant call."""
        parse_nbytes(nbytes)
        self._refuse_if_closed()
        capacity = align_up(nbytes, self.parts.backend.granularity)
        try:
            return self._place_alone(capacity, alignment)
        except OutOfMemoryError as refused:
            raise self.out_of_memory(
                Request(nbytes, capacity, native=refused.report.native)
            ) from None

    def _place_alone(self, capacity: int, alignment: int) -> Block:
        capacity = align_up(capacity, self.parts.backend.granularity)
        place = partial(self.parts.dedicated.place, capacity, alignment)
        block = self.bins.reserve_block(capacity)
        return self._place_reserved(block, lambda: (*place(), False))

    def _place_reserved(
        self, block: Block, place: Callable[[], tuple[Arena, int, bool]]
    ) -> Block:
        """Place a block, whose record comes first: then no memory is needed any more.

        Args:
            block: Its record.
            place: Returns its arena, its offset, and whether a bin may take it.
        """
        try:
            arena, offset, is_binned = place()
        except BaseException:
            self.bins.drop_reserved(block)
            raise
        return self.bins.place_reserved(block, arena, offset, is_binned=is_binned)

    def place_slowly(self, nbytes: int, capacity: int, alignment: int) -> Block:
        """Place a block for which pages have to be found, or raise.

        Args:
            nbytes: As asked for.
            capacity: What the block takes.
            alignment: Beyond the usual one; else 0.

        Raises:
            OutOfMemoryError: With what was tried; everything is as before.
            ValueError: The pool is closed.
        """
        self._refuse_if_closed()
        if capacity > LARGEST_CAPACITY_NBYTES:
            parse_nbytes(nbytes)
            raise self.out_of_memory(Request(nbytes, capacity))
        if locks_held.get(threading.get_ident()):  # re-entrant: waiting may be deadlock
            return self.place_dedicated(capacity, alignment)
        request = Request(nbytes, capacity)
        if self._is_above_limits(capacity):
            raise self.out_of_memory(request)
        shared = self.parts.shared
        binned = shared.binned_nbytes
        attempt = partial(self._try_to_place, capacity, alignment)
        try:
            return attempt()
        except OutOfMemoryError as error:
            native = error.report.native
        flushed = max(binned - shared.binned_nbytes, 0)
        request = request._replace(native=native, tried=(("flush", flushed),))
        try:
            return reclaim(self, request, self._steps(capacity), attempt)
        except OutOfMemoryError as error:
            self._refuse_in_capture(error)
            raise

    def _refuse_in_capture(self, error: OutOfMemoryError) -> None:
        """Raise where a request failed for a capture: all it could do was to wait.

        There is enough that is free, of other streams or in use by none, and no stream
        may be waited for, nor its memory be taken, while a graph is captured from it.
        """
        report, room = error.report, self.parts.budget.room_nbytes
        if report.free_nbytes + (room or 0) >= report.capacity_nbytes:
            self.growth.refuse_in_capture()

    def _is_above_limits(self, capacity: int) -> bool:
        """Return whether a limit is too low for so much, whatever is given back."""
        budget = self.parts.budget
        limits = budget.limit_nbytes, budget.device.limit_nbytes
        return any(limit is not None and capacity > limit for limit in limits)

    def held(self) -> tuple[int, ...]:
        """Return the bytes that a step may lower: live, in bins, committed."""
        shared = self.parts.shared
        committed = self.parts.budget.committed_nbytes
        return shared.live_nbytes, shared.binned_nbytes, committed

    def _steps(self, capacity: int) -> Iterator[Step]:
        """Yield what to try, in order, before a request fails."""
        parts, hold = self.parts, self.parts.lock.hold
        if parts.debug is not None:
            yield Step("emptying the quarantine", partial(hold, self._empty_quarantine))
        yield from self._waits(is_last=False)
        if not parts.options.recycle:  # else idle pages have been used already
            room = (parts.options.limit_nbytes or capacity) - capacity
            yield Step("trim", partial(self.trim, room))
        yield from parts.reclaimers.steps(capacity)
        yield from self._waits(is_last=True)

    def _waits(self, *, is_last: bool) -> Iterator[Step]:
        """Yield a wait for each stream with idle pages, this one first, then for all.

        Each is enough for what the stream itself has freed. Blocks that several streams
        have used, and that are pending, need the last.
        """
        hold, name = self.parts.lock.hold, "waiting for the device"
        if not self.growth.order.is_ordered:
            return
        for growth in sorted(
            self.growth.family, key=lambda one: one is not self.growth
        ):
            if growth.has_idle() and not (is_last and self._is_seen_done(growth)):
                yield Step(name, partial(hold, partial(self._wait_for, growth)))
        if not is_last or self.parts.streams.pending:
            yield Step(name, partial(hold, self._wait_for_streams))

    def _is_seen_done(self, growth: Growth) -> bool:
        with contextlib.suppress(BackendError):  # the wait for it tells
            return self.parts.lock.hold(growth.is_done)
        return False

    def _wait_for(self, growth: Growth) -> None:
        growth.refuse_in_capture()
        growth.wait_for_free()
        self.take_back_all()

    def _try_to_place(self, capacity: int, alignment: int) -> Block:
        """Place a block after all that is free has been joined, or raise."""
        parts = self.parts
        if self.is_forgotten:
            parts.streams.keep(self)
        block = parts.lock.hold(partial(self._place_now, capacity, alignment))
        budget = parts.budget
        if budget.soft.is_news or budget.device.soft.is_news:
            self._tell_news(block)
        return block

    def _place_now(self, capacity: int, alignment: int) -> Block:
        parts, bins = self.parts, self.bins
        self._refuse_if_closed()  # again: a reclaimer may have closed it
        self.take_back_all()
        if not parts.options.pooling:
            return self._place_alone(capacity, alignment)
        if parts.debug is not None and parts.debug.is_between_pages(capacity):
            aligned = max(alignment, BLOCK_GRANULARITY)
            end = parts.dedicated.place_at_end(capacity, aligned)
            # Its capacity is known only now. Where there is no memory for the record,
            # recovery gives the arena back.
            block = bins.reserve_block(end[2])
            return self._place_reserved(block, lambda: (end[0], end[1], False))
        block = bins.reserve_block(capacity)
        place = partial(self._place_in_arena, capacity, alignment)
        block = self._place_reserved(block, place)
        parts.budget.sample(parts.shared.allocation_count)
        bins.leash_nbytes = parts.budget.committed_nbytes // LEASH_DIVISOR
        return block

    def _place_in_arena(self, capacity: int, alignment: int) -> tuple[Arena, int, bool]:
        bins, growth = self.bins, self.growth
        arena, offset = growth.place(capacity, alignment)
        is_own = arena in bins.bands[0] or arena in bins.bands[1]
        if not is_own:
            bins.users[arena, offset] = [growth.order]
        return arena, offset, is_own and alignment == 0

    def _tell_news(self, block: Block) -> None:
        """Warn of soft limits; where that raises, the block goes back first."""
        budget = self.parts.budget
        device = self.parts.backend.device
        try:
            budget.soft.tell(f"{device}: a pool")
            budget.device.soft.tell(f"{device}: all pools together")
        except BaseException:
            self.parts.lock.hold(lambda: self.unplace(block))
            raise

    def take_back_all(self) -> None:
        """Give all that is free back to the indexes, where it coalesces."""
        streams = self.parts.streams
        for lane in streams.lanes:
            lane.take_back_returned()
            lane.bins.flush()
        if streams.pending or self.parts.debug is not None:
            self.take_back_pending()

    def take_back_pending(self, *, is_lost: bool = False) -> None:
        """Give back what waited and need not any more; all of it of a lost device."""
        parts, debug = self.parts, self.parts.debug
        if parts.streams.pending:
            parts.streams.take_back_pending(is_lost=is_lost)
        if debug is not None and (is_lost or not debug.is_capturing(parts.growth)):
            debug.look_at_arrivals(is_lost=is_lost)
            keep = 0 if parts.lock.is_closed else debug.quarantine.most_nbytes
            debug.let_go(keep, is_lost=is_lost)

    def take_back_returned(self) -> None:
        """Give freed blocks of no bin back to the index, or let them wait."""
        while block := self.bins.take_back_returned():
            self.take_back(block)

    def take_back(self, block: Block) -> None:
        """Give one back that is in a dedicated arena, has users, or is to be wiped."""
        placed = self.bins.place_of(block)
        assert placed is not None, "blocks without bytes are never placed"
        parts, key = self.parts, placed[:2]
        users = self.bins.users.pop(key, None)
        if parts.debug is not None and parts.debug.arrive(self, block, key, users):
            return
        if users is None and not parts.zeroing.waits:
            self.unplace(block)
        else:
            parts.streams.wait_for_users(self, block, users)

    def unplace(self, block: Block) -> None:
        """Give a block back to the index, or its dedicated arena to the device."""
        arena = self.bins.unplace(block)
        if arena is not None:
            self.parts.dedicated.release(cast("Arena", arena))

    def _empty_quarantine(self) -> None:
        """In debug mode, let go of freed blocks that are held back."""
        self.take_back_all()
        debug = self.parts.debug
        if debug is not None and not debug.is_capturing(self.growth):
            debug.let_go(0, is_lost=False)

    def _wait_for_streams(self) -> None:
        self.growth.settle()
        self.take_back_all()  # what was returned since has events of its own

    def _refuse_if_closed(self) -> None:
        if self.parts.lock.is_closed:
            # A free that found the lock taken, on the way here, has left it to us.
            self.freed_after_close()
            device = self.parts.backend.device
            raise ValueError(
                f"a closed pool of {device} allocates nothing; make a new Pool"
            )

    def out_of_memory(self, request: Request) -> OutOfMemoryError:
        """Return the error that says why a request failed."""
        parts = self.parts
        inside = None
        if parts.lock.is_mine:
            # A handler that lets this error pass cuts off the call that it is in.
            parts.shared.was_interrupted = True
        elif not locks_held.get(threading.get_ident()):
            inside = parts.lock.hold(lambda: look_inside(parts, request.capacity))
        return explain(request, parts, inside)

    def trim(self, keep: int) -> int:
        """Give memory back until at most ``keep`` bytes are committed; return it."""
        if self.parts.debug is None:
            return self.parts.lock.hold(lambda: self._trim_now(keep))
        before = self.parts.budget.committed_nbytes
        self.parts.lock.hold(self._empty_quarantine)
        self.parts.lock.hold(lambda: self._trim_now(keep))
        return max(before - self.parts.budget.committed_nbytes, 0)

    def _trim_now(self, keep: int) -> int:
        parts = self.parts
        before = parts.budget.committed_nbytes
        self.take_back_all()
        # After it: what is queued and freed from here on stays in its bin.
        parts.growth.let_go()
        self.take_back_pending()
        if parts.zeroing.waits:
            parts.growth.let_go()  # again: more may have been told to be wiped
        parts.growth.trim(keep)
        return before - parts.budget.committed_nbytes

    def stop_placing(self) -> None:
        """Hand out nothing any more, and let what is freed go back to the device."""
        self.growth.stop_placing(cast("Bands", self.bins.bands))
        self.bins.return_every_free()

    def freed_after_close(self) -> None:
        """Give back what was freed since the pool was closed. Runs in finalizers."""
        self.parts.give_back_freed()


def _allocate_from(
    pool: HotPool, nbytes: int | str, alignment: int | None, tag: str | None
) -> Memory:
    if alignment is None and tag is None:  # without options it is quickest
        return pool.allocate(nbytes)
    return pool.allocate(nbytes, alignment=alignment, tag=tag)


def parts_of(pool: HotPool) -> Parts:
    """Return the parts of a pool, for the rest of madl."""
    return cast("Lane", lane_of(pool)).parts
