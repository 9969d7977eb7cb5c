"""A pool's lanes: for each stream bins, an index and arenas of its own.

What a stream has freed it may use again at once, since its own queue keeps the order.
Blocks of one lane only meet and coalesce with each other, so none waits for an event.
Lanes share the limit, the lock and the account; idle pages go from one to another
when the device is seen to be done with them.
"""

import contextlib
import functools
from collections.abc import Callable, Hashable
from typing import Any, cast

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, StreamOrderedBackend
from madl.errors import BackendCallError, MadlError, MissingCapabilityError
from madl.hotpath import Block, BlockState, HotArena, JoinedPool, Memory
from madl.hotpath.reentrancy import is_inside
from madl.pool.allocate import SlowPool
from madl.pool.growth import Growth
from madl.pool.options import PoolOptions
from madl.pool.pending import PendingBlock
from madl.pool.recovery import recover
from madl.pool.shutdown import is_ending
from madl.pool.stream_order import StreamOrder

MOST_STREAMS_SEEN = 1024  # objects: some libraries make a new one for each use


class OrderedPool(SlowPool):
    """What a pool and its lanes have in common."""

    _past_misses = 0
    """Of lanes that are gone; of such a lane, those that the pool counts itself."""

    def _all_states(self) -> list[BlockState]:
        return [state for lane in self._family() for state in lane._block_states()]

    def _all_misses(self) -> int:
        misses: int = sum(lane._miss_count for lane in self._family())
        return misses + cast("OrderedPool", self._head)._past_misses

    def _record_stream(self, memory: Memory, stream: object) -> None:
        """Keep a block, once it is free, from reuse while a stream may use it."""
        lane = self._lane_of(stream)
        placed = memory._place()
        if lane is self or placed is None or placed[0] is None:
            return
        key, order = (placed[0], placed[1]), lane._growth.order

        def add_user() -> None:
            users = self._users.setdefault(key, [])
            if order not in users:
                users.append(order)
            memory._unbin()

        self._locked(add_user)

    def _unplace_when_unused(self, block: Block, arena: HotArena, offset: int) -> None:
        users = self._users.pop((arena, offset), None)
        if users is None and not self._zeroing.waits:
            self._unplace(block)
            return
        entry = PendingBlock(self, block, users or [])
        pending = cast("StreamPool", self._head)._pending
        pending.append(entry)
        if users is not None:
            entry.record()  # last: it may fail, and so may what follows
        elif entry.is_wiped():
            pending.remove(entry)
            self._unplace(block)


class StreamPool(OrderedPool):
    """A pool that serves each stream in a lane; itself the default stream's."""

    def __init__(self, backend: CountedBackend, options: PoolOptions) -> None:
        super().__init__(backend, options)
        self._lanes: dict[Hashable, SlowPool] = {}
        # The same by object, so that the backend need not be asked each time.
        self._lanes_seen: dict[object, SlowPool] = {}
        self._others: list[Lane] = []  # and those whose stream has been forgotten
        self._pending: list[PendingBlock] = []

    def _family(self) -> list[SlowPool]:
        return [self, *self._others]

    def _lane_of(self, stream: object) -> SlowPool:
        """Return the lane of a stream; the first call makes it."""
        try:
            return self._lanes_seen[stream]
        except (KeyError, TypeError):  # the latter of what cannot be hashed
            return self._find_lane(stream)

    def _key_of(self, stream: object, *, instead: str) -> Hashable:
        if Capability.STREAM_ORDERED not in self.capabilities:
            raise MissingCapabilityError(self.device, "streams", instead)
        return self._ordered.stream_key(stream)

    @property
    def _ordered(self) -> StreamOrderedBackend:
        return cast("StreamOrderedBackend", self._backend.backend)

    def _find_lane(self, stream: object) -> SlowPool:
        key = self._key_of(stream, instead="allocate without stream=")
        find = functools.partial(self._find_lane_now, stream, key)
        return find() if is_inside() else self._locked(find)

    def _find_lane_now(self, stream: object, key: Hashable) -> SlowPool:
        if not self._lanes:
            self._lanes[self._ordered.stream_key(None)] = self
        lane = self._lanes.get(key)
        if lane is None:
            made = self._make_lane(stream)
            lane = self._lanes.setdefault(key, made)  # a finalizer may be faster
            if lane is made:
                self._others.append(made)
        if len(self._lanes_seen) < MOST_STREAMS_SEEN:
            with contextlib.suppress(TypeError):  # of what cannot be hashed
                self._lanes_seen[stream] = lane
        return lane

    def _forget_waiting(self) -> None:
        """Forget which blocks wait, all of which will be found again."""
        self._pending.clear()

    def _make_lane(self, stream: object) -> "Lane":
        return Lane(self, stream)

    def _take_back_all(self) -> None:
        """Let no block wait that is free and unused: bins, returned and pending."""
        for lane in self._family():
            lane._take_back_returned()
            lane._flush()
        self._take_back_pending()

    def _take_back_pending(self, *, is_lost: bool = False) -> None:
        """Unplace what no stream uses any more; all of it, if the device is lost."""
        busy: set[StreamOrder] = set()  # what is behind one that is not done, is not
        for entry in list(self._pending):
            is_busy = not busy.isdisjoint(entry.users)
            # Raises where the device fails: then nothing is lost.
            if is_lost or (not is_busy and entry.is_unused() and entry.is_wiped()):
                self._pending.remove(entry)
                entry.lane._unplace(entry.block)
            else:
                busy.update(entry.users)

    def _release_all(self) -> None:
        """Give back all that is free of a closed pool, even of a lost device."""
        with contextlib.suppress(BackendCallError):
            self._take_back_all()
        with contextlib.suppress(BackendCallError):
            if self._zeroing.waits:
                self._growth.settle()  # then other streams keep nothing from that
                self._take_back_pending()
            self._growth.let_go()
        self._take_back_pending(is_lost=True)
        self._growth.trim(0)

    def _freed_after_close(
        self,
        is_ending: Callable[[], bool] = is_ending,  # this module is gone at exit
    ) -> None:
        # At least once: what was freed may have been taken back already, by a miss
        # that came just before the pool was closed and gives nothing to the device.
        while not is_ending():
            if not self._unless_locked(self._release_freed):
                return  # whoever holds the lock comes here on its way out
            if not any(lane._has_returned() for lane in self._family()):
                return

    def _release_freed(self) -> None:
        # No free raises because of the device; the next one tries again.
        with contextlib.suppress(MadlError):
            if self._was_interrupted:
                recover(self, self._growth)
            self._release_all()

    def _wait_for_streams(self) -> None:
        """Wait for all queued work, so that whatever is free can be used anywhere."""
        self._locked(self._wait_for_streams_now)

    def _wait_for_streams_now(self) -> None:
        self._growth.settle()
        self._take_back_all()  # what was returned since has events of its own

    def forget_stream(self, stream: object) -> None:
        """Merge a stream's memory into the default stream's; it may end then.

        Its later work is of no concern to the pool. Needed before a stream ends that
        was given as a number; other streams are kept alive until they are forgotten.
        Blocks of it that are live stay so.

        Args:
            stream: As for ``allocate``. One that the pool does not know is ignored.

        Raises:
            MissingCapabilityError: The device is not stream-ordered.
        """
        key = self._key_of(stream, instead="forget none")
        self._locked(lambda: self._forget_lane(key))

    def _forget_lane(self, key: Hashable) -> None:
        lane = self._lanes.get(key)
        if not isinstance(lane, Lane):  # the default one, or unknown
            return
        self._take_back_all()
        lane._unbin_all()
        self._growth.absorb(lane._growth)
        # Whoever still waits for it waits for the stream that now follows it.
        lane._growth.order.stream = self._growth.order.stream
        lane._growth = self._growth
        lane._stream = self._stream
        lane._most_nbytes = -1  # no request is for its bins
        lane.is_forgotten = True
        del self._lanes[key]
        self._lanes_seen.clear()
        for one in list(self._others):
            if one.is_forgotten and not one._block_states():
                self._others.remove(one)
                one._past_misses = one._miss_count
                self._past_misses += one._past_misses


class Lane(JoinedPool, OrderedPool):
    """The part of a pool that serves one stream."""

    is_forgotten = False

    def __init__(self, head: StreamPool, stream: object) -> None:
        self._of = head
        self._stream = stream
        super().__init__(head._backend, head._options)
        self._join(head)
        self._stream_number = len(head._others) + 1
        self._reclaimers, self._tags = head._reclaimers, head._tags

    def _make_growth(self, bands: Any) -> Growth:  # noqa: ANN401  # as HotPool has them
        return self._of._growth.branch(bands, self._stream)

    @property
    def _head(self) -> StreamPool:
        return self._of

    def _family(self) -> list[SlowPool]:
        return self._of._family()

    def _lane_of(self, stream: object) -> SlowPool:
        return self._of._lane_of(stream)

    def _take_back_all(self) -> None:
        self._of._take_back_all()

    def _wait_for_streams(self) -> None:
        self._of._wait_for_streams()

    def _take_back_pending(self, *, is_lost: bool = False) -> None:
        self._of._take_back_pending(is_lost=is_lost)

    def _allocate_with(
        self,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> Memory:
        if self.is_forgotten:
            return self._of._allocate_with(nbytes, alignment, stream, tag)
        return super()._allocate_with(nbytes, alignment, stream, tag)

    def _try_to_place(self, capacity: int, alignment: int) -> Block:
        # Of a thread that had looked the lane up before it was forgotten.
        if self.is_forgotten and self not in self._of._others:
            self._of._others.append(self)
            self._of._past_misses -= self._past_misses
        return super()._try_to_place(capacity, alignment)

    def _freed_after_close(self) -> None:
        self._of._freed_after_close()

    def __repr__(self) -> str:
        return f"<lane of {self._stream!r} in {self._of!r}>"
