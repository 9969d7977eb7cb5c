"""Pools in debug mode: guards around each block, and a quarantine of what was freed.

They are of classes of their own, made from those of other pools, so that these have
nothing to ask. No block goes to a bin: each is placed anew, with its guards, and each
that is freed waits in the quarantine until it has been looked at.
"""

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from madl.errors import BackendError, MemoryCorruptionError
from madl.errors.damage import Damage
from madl.hotpath import BLOCK_GRANULARITY, Block, HotArena, Memory, Watch
from madl.pool.arena import Arena
from madl.pool.debug.guards import Guard, GuardedWatch, guarded_capacity
from madl.pool.debug.patterns import GuardBytes, guard_bytes_of
from madl.pool.debug.quarantine import Held, Quarantine
from madl.pool.reclaim import Step
from madl.pool.streams import Lane, OrderedPool, StreamPool
from madl.pool.tracking import TagUsage
from madl.pool.weak_sets import living
from madl.sizes import align_up

LEAST_BETWEEN_PAGES_NBYTES = 64 << 10
"""Smaller blocks have guard bytes only: each pair of guard pages splits a mapping."""

_Pool = TypeVar("_Pool", bound=StreamPool)


class _Debugged(OrderedPool):
    """What a pool in debug mode and its lanes do differently."""

    _access: GuardBytes
    _guards: dict[tuple[HotArena, int], Guard]
    """Of all blocks that are live or in quarantine, by arena and offset."""
    _damage: deque[Damage]
    """What was found and nobody was told of yet."""
    _quarantine: Quarantine

    @property
    def _debug_head(self) -> "DebugPool":
        return cast("DebugPool", self._head)

    def allocate(
        self,
        nbytes: int | str,
        *,
        alignment: int | None = None,
        stream: object = None,
        tag: str | None = None,
    ) -> Memory:
        """Return memory of at least ``nbytes`` bytes, as any pool does.

        Its bytes are filled with 0xFF. They may be written, and none beside them.

        Raises:
            MemoryCorruptionError: Damage was found since the last call; nothing is
                allocated.
        """
        return self._allocate_with(nbytes, alignment, stream, tag)

    def _find(self, asked: int, aligned: int) -> Block:
        if asked == 0:
            return super()._find(asked, aligned)
        alignment = aligned if aligned > BLOCK_GRANULARITY else 0
        capacity = guarded_capacity(self._access, asked)
        if self._lock_holder == threading.get_ident():
            return self._place_apart(capacity, alignment)
        if self._options.debug.has_guard_pages and asked >= LEAST_BETWEEN_PAGES_NBYTES:
            # The page behind it is the guard: it ends as close to that as can be.
            capacity = self._access.front_nbytes + align_up(asked, BLOCK_GRANULARITY)
        return self._place_slowly(asked, capacity, alignment)

    def _place_among_others(self, capacity: int, alignment: int) -> Block:
        is_guarded = self._options.debug.has_guard_pages
        if not is_guarded or capacity < LEAST_BETWEEN_PAGES_NBYTES:
            return super()._place_among_others(capacity, alignment)
        arena, offset, taken = self._growth.apart.place_at_end(
            capacity, max(alignment, BLOCK_GRANULARITY)
        )
        return self._block_at(arena, offset, taken, is_binned=False)

    def _block_at(
        self, arena: HotArena, offset: int, capacity: int, *, is_binned: bool
    ) -> Block:
        del is_binned  # what is freed goes to the quarantine
        self._users.setdefault(_NOBODY, [])
        return super()._block_at(arena, offset, capacity, is_binned=False)

    def _hand_out(self, block: Block, nbytes: int, watch: Watch | None) -> Memory:
        if watch is None and nbytes:
            return self._hand_out_watched(block, nbytes, None, None)
        return super()._hand_out(block, nbytes, watch)

    def _hand_out_watched(
        self, block: Block, asked: int, tag: str | None, usage: TagUsage | None
    ) -> Memory:
        if asked == 0:
            return super()._hand_out_watched(block, asked, tag, usage)
        kept = self._damage
        number = self._stream_number
        try:
            watch = GuardedWatch(asked, tag, usage, stream_number=number, kept=kept)
        except BaseException:  # a listener's
            super()._hand_out(block, asked, None).free()
            raise
        memory = super()._hand_out(block, asked, watch)
        try:
            if self._access.front_nbytes:
                self._guard(memory, watch)
            self._debug_head._tell_damage()
        except BaseException:
            watch.disown()
            memory.free()
            raise
        watch.count(memory.capacity - asked)
        return memory

    def _guard(self, memory: Memory, watch: GuardedWatch) -> None:
        placed = memory._place()
        assert placed is not None, "it is not freed yet"
        arena, offset, capacity = placed
        assert arena is not None, "blocks without bytes have no guards"
        described = memory.nbytes, capacity, watch.tag, watch.stack
        guard = Guard(self._access, self.device, *described)
        self._guards[arena, offset] = watch.guard = guard
        if not self._is_capturing():  # else each replay would write the guards anew
            guard.arm(arena, offset, self._stream)

    def _is_capturing(self) -> bool:
        return any(growth.order.is_capturing() for growth in self._growth.family)

    def _unplace_when_unused(self, block: Block, arena: HotArena, offset: int) -> None:
        guard = self._guards.get((arena, offset))
        if guard is None:  # its handle was never made, or there is nothing to guard
            super()._unplace_when_unused(block, arena, offset)
            return
        users = self._users.pop((arena, offset), [])
        lane = None if self is self._head else self
        self._quarantine.arrive(Held(lane, block, guard, (arena, offset), users))

    def _steps(self, capacity: int) -> Iterator[Step]:
        yield Step("emptying the quarantine", self._debug_head._empty_quarantine)
        yield from super()._steps(capacity)


# A pool asks whether any block has users before it asks who they are.
_NOBODY = cast("tuple[HotArena, int]", (None, 0))


class DebugPool(_Debugged, StreamPool):
    """Mixed into the class of a pool."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # those of the class that it is mixed into
        super().__init__(*arguments, **options)
        self._access = guard_bytes_of(self._backend, is_asked=False)
        self._quarantine = Quarantine(self._options.limit_nbytes)
        self._guards = {}
        self._damage = deque()
        _pools.add(self)

    @property
    def is_debugging(self) -> bool:
        """Whether it is in debug mode."""
        return True

    def _make_lane(self, stream: object) -> Lane:
        return _DebugLane(self, stream)

    def _take_back_pending(self, *, is_lost: bool = False) -> None:
        super()._take_back_pending(is_lost=is_lost)
        if is_lost or not self._is_capturing():
            self._look_at_arrivals(is_lost=is_lost)
            keep = 0 if self._was_closed else self._quarantine.most_nbytes
            self._let_go(keep, is_lost=is_lost)

    def _look_at_arrivals(self, *, is_lost: bool) -> None:
        quarantine = self._quarantine
        while quarantine.arriving:
            held = quarantine.arriving[0]
            if not (held.guard.is_freed or is_lost):
                for user in held.users:
                    user.wait()
                self._damage += held.guard.retire(self._stream_of(held))
            if self._options.debug.has_guard_pages and held.place[0].is_apart:
                self._shut(held)
            quarantine.stay()  # last: a device that fails is asked again

    def _shut(self, held: Held) -> None:
        """Let nobody touch a freed block. It counts as committed all the same."""
        arena, offset = cast("Arena", held.place[0]), held.place[1]
        held.guard.is_armed = False  # first: nobody may look any more
        first, stop = arena.pages_under(offset, held.guard.capacity)
        start, end = first * arena.page_nbytes, stop * arena.page_nbytes
        self._backend.decommit(arena.reservation, start, end - start)

    def _let_go(self, keep_nbytes: int, *, is_lost: bool) -> None:
        while (held := self._quarantine.next_to_leave(keep_nbytes)) is not None:
            if not is_lost:
                self._damage += held.guard.look(self._stream_of(held))
            self._quarantine.leave()
            del self._guards[held.place]
            (held.lane or self)._unplace(held.block)

    def _stream_of(self, held: Held) -> object:
        return (held.lane or self)._stream  # another one once the first is forgotten

    def _empty_quarantine(self) -> None:
        self._locked(self._empty_now)

    def _empty_now(self) -> None:
        self._take_back_all()
        if not self._is_capturing():
            self._let_go(0, is_lost=False)

    def _forget_waiting(self) -> None:
        super()._forget_waiting()
        self._quarantine.forget()

    def _trim(self, keep: int) -> int:
        before = self._growth.budget.committed_nbytes
        self._empty_quarantine()
        super()._trim(keep)
        return max(before - self._growth.budget.committed_nbytes, 0)

    def _keep_damage(self) -> None:
        if not self._access.is_immediate:
            if self._is_capturing():
                return
            self._growth.settle()
        for guard in list(self._guards.values()):
            self._damage += guard.look(self._stream)

    def _tell_damage(self) -> None:
        found = self._take_damage()
        if found:
            raise MemoryCorruptionError(tuple(found))

    def _take_damage(self) -> list[Damage]:
        found = []
        while self._damage:  # finalizers add to it
            found.append(self._damage.popleft())
        return found

    def _damage_at_exit(self) -> list[Damage]:
        # A thread that will never go on may have the lock.
        with contextlib.suppress(BackendError):
            self._unless_locked(self._keep_damage)
        return self._take_damage()


class _DebugLane(_Debugged, Lane):
    """The part of a pool in debug mode that serves one stream."""

    def __init__(self, head: DebugPool, stream: object) -> None:
        super().__init__(head, stream)
        self._access, self._guards = head._access, head._guards
        self._damage, self._quarantine = head._damage, head._quarantine


_kinds: dict[type, type] = {}
"""Classes of pools in debug mode, by that of other pools."""


def debugging(kind: type[_Pool]) -> type[_Pool]:
    """Return the class of pools of a kind that are in debug mode."""
    if issubclass(kind, DebugPool):
        return kind
    if kind not in _kinds:
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _kinds.setdefault(kind, type(kind.__name__, (DebugPool, kind), names))
    return cast("type[_Pool]", _kinds[kind])


_pools: "weakref.WeakSet[DebugPool]" = weakref.WeakSet()


@atexit.register
def _tell_at_exit() -> None:
    """Raise what is found at the end; the interpreter prints it and exits."""
    found = [damage for pool in living(_pools) for damage in pool._damage_at_exit()]
    if found:
        raise MemoryCorruptionError(tuple(found))
