"""Streams: a lane for each, and free blocks that other streams may still use.

What a stream has freed it may use again without waiting, since its own queue keeps the
order. Blocks of one lane only meet and coalesce with each other, so none waits for an
event. Lanes share the limit, the lock and the counts; idle pages go from one to another
once the device is seen to be done with them.
"""

import contextlib
from collections.abc import Callable, Hashable
from typing import Protocol, cast

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, StreamOrderedBackend
from madl.errors import MissingCapabilityError
from madl.hotpath import Bins, Block, BlockState, HotPool
from madl.hotpath.reentrancy import is_inside
from madl.pool.growth import Growth
from madl.pool.lock import PoolLock
from madl.pool.stream_order import StreamOrder

MOST_STREAMS_SEEN = 1024  # objects: some libraries make a new one for each use


class Served(Protocol):
    """What a lane is to this module: the bins and arenas that serve one stream."""

    bins: Bins
    growth: Growth
    stream: object
    is_forgotten: bool

    def take_back_returned(self) -> None:
        """Give freed blocks of no bin back to the index."""

    def unplace(self, block: Block) -> None:
        """Give a block back to the index."""

    def is_wiped(self, block: Block) -> bool:
        """Wipe a free block where the device does that; return whether it is done."""

    def stop_placing(self) -> None:
        """Hand out nothing any more, and let what is freed go back to the device."""

    def take_back_all(self) -> None:
        """Give all that is free, in any lane, back to the indexes."""

    def take_back_pending(self, *, is_lost: bool = False) -> None:
        """Give back what waited and need not any more; all of it of a lost device."""


class PendingBlock:
    """A free block that waits: for other streams that use it, or to be wiped."""

    def __init__(self, lane: Served, block: Block, users: list[StreamOrder]) -> None:
        self.lane = lane
        self.block = block
        self.users = users
        self._events: list[object] = []

    def record(self) -> None:
        """Record what the streams have queued by now; only the first call does."""
        if not self._events:
            self._events = [user.record() for user in self.users]

    def is_unused(self) -> bool:
        """Return whether all of them are done with it. Does not wait."""
        self.record()
        return not self.users or all(map(self.users[0].has_reached, self._events))


class Streams:
    """The lanes of one pool, and the blocks that wait for streams of several.

    Args:
        backend: The pool's.
        lock: The pool's.
        make: Makes the pool object of a lane for a stream, in the family of a pool.
    """

    def __init__(
        self,
        backend: CountedBackend,
        lock: PoolLock,
        make: Callable[[HotPool, object], tuple[HotPool, Served]],
    ) -> None:
        self.lanes: list[Served] = []
        """The default stream's first; those of forgotten streams while they have
        blocks. A block of a lane that is missing here counts as free memory."""
        self.pending: list[PendingBlock] = []
        self._backend = backend
        self._ordered = cast("StreamOrderedBackend", backend.backend)
        self._lock = lock
        self._make = make
        self._by_key: dict[Hashable, tuple[HotPool, Served] | None] = {}
        # By object, so that the backend need not be asked for a key each time. The
        # pool of the default stream is not in it: it would keep itself alive.
        self.seen: dict[object, HotPool | None] = {}
        self._past_misses = 0
        """Of lanes that are gone."""

    def states(self) -> list[BlockState]:
        """Return every placed block of all lanes."""
        return [state for lane in self.lanes for state in lane.bins.states()]

    def miss_count(self) -> int:
        """Return how many allocations found no bin."""
        return sum(lane.bins.miss_count for lane in self.lanes) + self._past_misses

    def pool_of(self, stream: object, head: HotPool) -> HotPool:
        """Return what serves a stream; the first call makes it.

        Args:
            stream: As for ``Pool.allocate``.
            head: The pool itself, which serves the default stream.
        """
        try:
            found = self.seen[stream]
        except (KeyError, TypeError):  # the latter of what cannot be hashed
            key = self.key_of(stream, instead="allocate without stream=")
            if is_inside():
                found = self._find(head, stream, key)
            else:
                found = self._lock.hold(lambda: self._find(head, stream, key))
        return head if found is None else found

    def key_of(self, stream: object, *, instead: str) -> Hashable:
        """Return what is equal for two objects that mean one stream."""
        if Capability.STREAM_ORDERED not in self._backend.capabilities:
            raise MissingCapabilityError(self._backend.device, "streams", instead)
        return self._ordered.stream_key(stream)

    def _find(self, head: HotPool, stream: object, key: Hashable) -> HotPool | None:
        if not self._by_key:
            self._by_key[self._ordered.stream_key(None)] = None
        if key not in self._by_key:
            made = self._make(head, stream)
            # Listed before it can be found: recovery takes the blocks of a lane that is
            # not listed for free memory.
            self.lanes.append(made[1])
            # A finalizer that ran in the call may have made one too: the first stays.
            if self._by_key.setdefault(key, made) is not made:
                self.lanes.remove(made[1])
        entry = self._by_key[key]
        found = None if entry is None else entry[0]
        if len(self.seen) < MOST_STREAMS_SEEN:
            with contextlib.suppress(TypeError):  # of what cannot be hashed
                self.seen[stream] = found
        return found

    def wait_for_users(
        self, lane: Served, block: Block, users: list[StreamOrder] | None
    ) -> None:
        """Keep a free block from reuse until streams are done, and it is wiped."""
        entry = PendingBlock(lane, block, users or [])
        self.pending.append(entry)
        if users is not None:
            entry.record()  # once it is in the list: a device that fails loses nothing
        elif lane.is_wiped(block):
            self.pending.remove(entry)
            lane.unplace(block)

    def take_back_pending(self, *, is_lost: bool = False) -> None:
        """Unplace what no stream uses any more; all of it, if the device is lost."""
        busy: set[StreamOrder] = set()  # what is behind one that is not done, is not
        for entry in list(self.pending):
            is_busy = not busy.isdisjoint(entry.users)
            # Raises where the device fails: the entry is in the list still.
            if is_lost or (
                not is_busy and entry.is_unused() and entry.lane.is_wiped(entry.block)
            ):
                self.pending.remove(entry)
                entry.lane.unplace(entry.block)
            else:
                busy.update(entry.users)

    def forget(self, key: Hashable) -> None:
        """Merge a lane into the default stream's. All that is free is in its index."""
        entry = self._by_key.get(key)
        if entry is None:  # the default one, or unknown
            return
        head, lane = self.lanes[0], entry[1]
        lane.bins.unbin_all()
        head.growth.absorb(lane.growth)
        # Blocks that wait for the stream wait for the one that now follows it.
        lane.growth.order.stream = head.growth.order.stream
        lane.growth = head.growth
        lane.stream = head.stream
        lane.bins.most_nbytes = -1  # no request is for its bins
        lane.is_forgotten = True
        del self._by_key[key]
        self.seen.clear()
        for one in [one for one in self.lanes if one.is_forgotten]:
            if not one.bins.states():
                self.lanes.remove(one)
                self._past_misses += one.bins.miss_count
                one.bins.miss_count = 0

    def keep(self, lane: Served) -> None:
        """Keep a lane that a thread had looked up before it was forgotten."""
        if lane not in self.lanes:
            self.lanes.append(lane)
