"""The guards of one block: written when it is allocated, looked at when it is freed.

Before and behind the user's bytes lie some that must not be written; the user's own are
filled when they are handed out and when they are freed.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator

from madl import stacks
from madl.errors import MemoryCorruptionError
from madl.errors.damage import OVERRUN, UNDERRUN, USE_AFTER_FREE, Damage
from madl.hotpath import BLOCK_GRANULARITY, HotArena
from madl.memory.place import reserved_place
from madl.pool.debug.patterns import (
    FREED,
    FRESH,
    GUARD,
    LEAST_BACK_NBYTES,
    MOST_BACK_NBYTES,
    GuardBytes,
    Stretch,
    written_in,
)
from madl.pool.tracking import BlockWatch, TagUsage
from madl.sizes import align_up
from madl.stacks import Stack

STACK_DEPTH = 8
"""Lines of each traceback that debug mode remembers, unless more are wanted."""


def guarded_capacity(access: GuardBytes, nbytes: int) -> int:
    """Return what a block takes in its arena with its guards."""
    back_nbytes = LEAST_BACK_NBYTES if access.front_nbytes else 0
    return align_up(access.front_nbytes + nbytes + back_nbytes, BLOCK_GRANULARITY)


class Guard:
    """The guards of one block. It keeps no pool.

    Finalizers use it, so it takes no lock. ``is_freed`` becomes true after the block
    was filled: a thread that races to look sees one of the two.
    """

    def __init__(
        self,
        access: GuardBytes,
        device: str,
        nbytes: int,
        capacity: int,
        tag: str | None,
        allocated_at: Stack,
    ) -> None:
        self.access = access
        self.device = device
        self.nbytes = nbytes
        self.capacity = capacity
        self.tag = tag
        self.allocated_at = allocated_at
        self.freed_at: Stack = ()
        self.is_armed = False
        self.is_freed = False  # and filled

    def arm(self, arena: HotArena, offset: int, stream: object) -> None:
        """Write the guards, and fill the block."""
        self.offset = offset
        reservation, start = reserved_place(arena, offset)
        front_nbytes = self.access.front_nbytes
        behind = self.capacity - front_nbytes - self.nbytes
        self.address = None if arena.address is None else arena.address + offset
        self._front = Stretch(reservation, start - front_nbytes, front_nbytes)
        self._body = Stretch(reservation, start, self.nbytes)
        self._back = Stretch(
            reservation, start + self.nbytes, min(behind, MOST_BACK_NBYTES)
        )
        self.access.fill(self._front, GUARD, stream)
        self.access.fill(self._body, FRESH, stream)
        self.access.fill(self._back, GUARD, stream)
        self.is_armed = True  # last: others may look from here on

    def look(self, stream: object = None) -> list[Damage]:
        """Return what was written where nothing may be, and put it right.

        Args:
            stream: On stream-ordered devices, the one that owns the block.
        """
        found = []
        if self.is_armed:
            for kind, stretch, value in self._watched():
                written = written_in(self.access, stretch, value, stream)
                if written is not None:
                    self.access.fill(stretch, value, stream)
                    first = stretch.offset - self._body.offset
                    found.append(self._damage(kind, first, *written))
        return found

    def _watched(self) -> Iterator[tuple[str, Stretch, int]]:
        yield UNDERRUN, self._front, GUARD
        yield OVERRUN, self._back, GUARD
        if self.is_freed:
            yield USE_AFTER_FREE, self._body, FREED

    def _damage(
        self, kind: str, start: int, first: int, stop: int, now: bytes
    ) -> Damage:
        return Damage(
            kind,
            self.device,
            self.nbytes,
            self.offset,
            self.address,
            self.tag,
            start + first,
            start + stop,
            now,
            self.allocated_at,
            self.freed_at,
        )

    def retire(self, stream: object = None) -> list[Damage]:
        """Look a last time at what was live, then fill it as freed."""
        found = self.look(stream)
        if self.is_armed:
            self.access.fill(self._body, FREED, stream)
            self.is_freed = True
        return found

    def note_free(self) -> list[Damage]:
        """Take note of the free; where the CPU can, retire the block now."""
        self.freed_at = stacks.capture(STACK_DEPTH)
        return self.retire() if self.access.is_immediate else []


class GuardedWatch(BlockWatch):
    """Looks at a block's guards when it is freed; warns of a drop without a free."""

    __slots__ = ("_kept", "guard")

    def __init__(
        self,
        nbytes: int,
        tag: str | None,
        usage: TagUsage | None,
        *,
        stream_number: int,
        kept: deque[Damage],
    ) -> None:
        super().__init__(nbytes, tag, usage, stream_number=stream_number)
        if len(self.stack) < STACK_DEPTH:
            self.stack = stacks.capture(STACK_DEPTH)
        self.guard: Guard | None = None
        self._kept = kept  # what was not raised yet

    def disown(self) -> None:
        """Count the block for no tag: its allocation failed after all."""
        self._usage = None

    def freed(self) -> None:
        """Take note of the free.

        Raises:
            MemoryCorruptionError: The guards are damaged. The block is freed.
        """
        super().freed()
        found = self._look()
        if found:
            raise MemoryCorruptionError(tuple(found))

    def dropped(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,  # sys is gone at exit
    ) -> None:
        """Take note of a drop without ``free()``, and warn of it.

        What it raises goes to ``sys.unraisablehook``, so it is kept as well.
        """
        if is_finalizing():
            return
        BlockWatch.freed(self)
        found = self._look()
        self._kept += found
        self._warn_of_drop()
        if found:
            raise MemoryCorruptionError(tuple(found))

    def _look(self) -> list[Damage]:
        return [] if self.guard is None else self.guard.note_free()
