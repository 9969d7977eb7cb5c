"""Debug mode, an object that the slow path asks: guards, and a quarantine.

No block goes to a bin: each is placed anew with its guards, and each that is freed
waits in the quarantine until it has been looked at.
"""

from collections import deque
from typing import NamedTuple, cast

from madl.backends.counted import CountedBackend
from madl.errors import MemoryCorruptionError
from madl.errors.damage import Damage
from madl.hotpath import BLOCK_GRANULARITY, Block, HotArena, Memory, place_of
from madl.pool.arena import Arena
from madl.pool.debug.guards import Guard, GuardedWatch, guarded_capacity
from madl.pool.debug.patterns import guard_bytes_of
from madl.pool.growth import Growth
from madl.pool.options import PoolOptions
from madl.pool.stream_order import StreamOrder
from madl.pool.streams import Served
from madl.pool.tracking import BlockWatch, TagUsage
from madl.sizes import align_up

LEAST_BETWEEN_PAGES_NBYTES = 64 << 10
"""Smaller blocks have guard bytes only: each pair of guard pages splits a mapping."""

MOST_HELD_NBYTES = 64 << 20
"""The most that a pool without a limit holds back."""

LIMIT_DIVISOR = 8
"""At most this part of a pool's limit is held back."""


class Held(NamedTuple):
    """A freed block."""

    lane: Served
    block: Block
    guard: Guard
    place: tuple[HotArena, int]
    users: list[StreamOrder]
    """Other streams that may still use it."""


class Quarantine:
    """Freed blocks that are held back, so that a late write to one is seen.

    The oldest first. Not thread-safe; the pool's lock is held.
    """

    def __init__(self, limit_nbytes: int | None) -> None:
        self.most_nbytes = MOST_HELD_NBYTES
        if limit_nbytes is not None:
            self.most_nbytes = min(MOST_HELD_NBYTES, limit_nbytes // LIMIT_DIVISOR)
        self.nbytes = 0
        self.arriving: deque[Held] = deque()
        """Those that have not been looked at yet."""
        self._held: deque[Held] = deque()

    def arrive(self, held: Held) -> None:
        """Take a block that was freed."""
        self.arriving.append(held)
        self.nbytes += held.guard.capacity

    def stay(self) -> None:
        """Hold back the block that has arrived first."""
        held = self.arriving.popleft()
        # One that would push out most others leaves before them.
        if 2 * held.guard.capacity > self.most_nbytes:
            self._held.appendleft(held)
        else:
            self._held.append(held)

    def next_to_leave(self, keep_nbytes: int) -> Held | None:
        """Return the block that leaves next, if more than ``keep_nbytes`` are held."""
        return self._held[0] if self._held and self.nbytes > keep_nbytes else None

    def leave(self) -> None:
        """Let that block go."""
        self.nbytes -= self._held.popleft().guard.capacity

    def forget(self) -> None:
        """Hold back nothing any more, and give nothing back."""
        self.arriving.clear()
        self._held.clear()
        self.nbytes = 0


class DebugMode:
    """What a pool in debug mode does besides."""

    def __init__(self, backend: CountedBackend, options: PoolOptions) -> None:
        self.quarantine = Quarantine(options.limit_nbytes)
        self._backend = backend
        self._has_guard_pages = options.debug.has_guard_pages
        self._access = guard_bytes_of(backend, is_asked=False)
        self._guards: dict[tuple[HotArena, int], Guard] = {}
        """Of all blocks that are live or in quarantine, by arena and offset."""
        self._damage: deque[Damage] = deque()
        """What was found and not raised yet. Finalizers add to it."""

    @staticmethod
    def of(backend: CountedBackend, options: PoolOptions) -> "DebugMode | None":
        """Return what a pool's options ask for; ``None`` for most pools."""
        return DebugMode(backend, options) if options.debug.is_on else None

    def guarded_capacity(self, nbytes: int) -> int:
        """Return what a block takes with guard bytes around it."""
        return guarded_capacity(self._access, nbytes)

    def capacity_of(self, nbytes: int) -> int:
        """Return what a block takes with its guards, be they bytes or pages."""
        if self._has_guard_pages and nbytes >= LEAST_BETWEEN_PAGES_NBYTES:
            # The page behind it is the guard: it ends as close to that as can be.
            return self._access.front_nbytes + align_up(nbytes, BLOCK_GRANULARITY)
        return self.guarded_capacity(nbytes)

    def is_between_pages(self, capacity: int) -> bool:
        """Return whether a block is to lie between pages that cannot be touched."""
        return self._has_guard_pages and capacity >= LEAST_BETWEEN_PAGES_NBYTES

    def watch(
        self, nbytes: int, tag: str | None, usage: TagUsage | None, stream_number: int
    ) -> GuardedWatch:
        """Return what looks at a block's guards when it is freed."""
        return GuardedWatch(
            nbytes, tag, usage, stream_number=stream_number, kept=self._damage
        )

    def guard(
        self, memory: Memory, watch: BlockWatch, growth: Growth, stream: object
    ) -> None:
        """Write the guards of a block that is handed out.

        Raises:
            MemoryCorruptionError: Damage was found since the last call. The block is
                freed.
        """
        assert isinstance(watch, GuardedWatch), "it was made by watch()"
        try:
            if self._access.front_nbytes:
                self._write_guards(memory, watch, growth, stream)
            self.tell()
        except BaseException:
            watch.disown()
            memory.free()
            raise

    def _write_guards(
        self, memory: Memory, watch: GuardedWatch, growth: Growth, stream: object
    ) -> None:
        placed = place_of(memory)
        assert placed is not None, "it is not freed yet"
        arena, offset, capacity = placed
        assert arena is not None, "blocks without bytes have no guards"
        described = memory.nbytes, capacity, watch.tag, watch.stack
        guard = Guard(self._access, self._backend.device, *described)
        self._guards[arena, offset] = watch.guard = guard
        if not self.is_capturing(growth):  # else each replay would write them anew
            guard.arm(arena, offset, stream)

    def is_capturing(self, growth: Growth) -> bool:
        """Return whether a graph is captured from a stream of the pool."""
        return any(one.order.is_capturing() for one in growth.family)

    def arrive(
        self,
        lane: Served,
        block: Block,
        place: tuple[HotArena, int],
        users: list[StreamOrder] | None,
    ) -> bool:
        """Take a freed block into the quarantine; return whether it has guards."""
        guard = self._guards.get(place)
        if guard is None:  # its handle was never made, or there is nothing to guard
            return False
        self.quarantine.arrive(Held(lane, block, guard, place, users or []))
        return True

    def look_at_arrivals(self, *, is_lost: bool) -> None:
        """Look at what has been freed, fill it, and hold it back."""
        quarantine = self.quarantine
        while quarantine.arriving:
            held = quarantine.arriving[0]
            if not (held.guard.is_freed or is_lost):
                for user in held.users:
                    user.wait()
                self._damage += held.guard.retire(held.lane.stream)
            if self._has_guard_pages and held.place[0].is_dedicated:
                self._shut(held)
            quarantine.stay()  # after the calls: a device that fails is asked again

    def _shut(self, held: Held) -> None:
        """Make a freed block inaccessible. It counts as committed all the same."""
        arena, offset = cast("Arena", held.place[0]), held.place[1]
        # Before the pages go: a thread that looked at the guard would be killed.
        held.guard.is_armed = False
        first, stop = arena.pages_under(offset, held.guard.capacity)
        start, end = first * arena.page_nbytes, stop * arena.page_nbytes
        self._backend.decommit(arena.reservation, start, end - start)

    def let_go(self, keep_nbytes: int, *, is_lost: bool) -> None:
        """Give the oldest blocks back until so many bytes are held."""
        while (held := self.quarantine.next_to_leave(keep_nbytes)) is not None:
            if not is_lost:
                self._damage += held.guard.look(held.lane.stream)
            self.quarantine.leave()
            del self._guards[held.place]
            held.lane.unplace(held.block)

    def look(self, growth: Growth, stream: object) -> None:
        """Look at all guards and keep what is found. The pool's lock is held."""
        if not self._access.is_immediate:
            if self.is_capturing(growth):
                return
            growth.settle()
        for guard in list(self._guards.values()):
            self._damage += guard.look(stream)

    def tell(self) -> None:
        """Raise what was found and not raised yet."""
        found = self.take_damage()
        if found:
            raise MemoryCorruptionError(tuple(found))

    def take_damage(self) -> list[Damage]:
        """Return that."""
        found = []
        while self._damage:
            found.append(self._damage.popleft())
        return found
