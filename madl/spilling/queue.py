"""The order of spilling, least recently used first, as reclaimers of a pool."""

import os
import sys
import threading
import weakref
from typing import Protocol

from madl.errors import MadlError
from madl.pool import Pool
from madl.pool.reclaim import Freed
from madl.pool.weak_sets import living

MOST_PASSES = 100
"""Scans of all members for one request, while other threads use them."""


class Spilling(Protocol):
    """What can be spilled."""

    last_used: int
    """The higher, the later."""

    def spill_if_unused(self) -> int:
        """Spill, unless it is in use; return the bytes that are free now."""

    def forget_lock(self) -> None:
        """Replace the lock in a forked child, where its owner does not run."""


class SpillQueue:
    """All that can be spilled from one pool with one priority."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[Spilling] = weakref.WeakSet()

    def add(self, spillable: Spilling) -> None:
        """Ask this one too from now on, as long as it lives."""
        with _lock:
            self._members.add(spillable)

    def spill_oldest(self, nbytes: int) -> Freed:
        """Spill what was not used for the longest time, until so much is free."""
        freed = 0
        for _ in range(MOST_PASSES):
            members = self._by_use()
            seen = [spillable.last_used for spillable in members]
            freed += self._spill(members, nbytes - freed)
            # A thread that leaves one with block and enters another between two looks
            # is seen in use both times, though one of the two was always free: scan
            # again as long as uses have ended since.
            if freed >= nbytes or seen == [one.last_used for one in members]:
                break
        return Freed(freed)

    def _by_use(self) -> list[Spilling]:
        with _lock:
            members = living(self._members)
        return sorted(members, key=lambda one: one.last_used)

    def _spill(self, members: list[Spilling], nbytes: int) -> int:
        freed = 0
        failure: Exception | None = None
        for spillable in members:
            if freed >= nbytes:
                return freed
            try:
                freed += spillable.spill_if_unused()
            except (OSError, MemoryError, MadlError) as error:
                failure = error  # another one may have its file elsewhere
        try:
            if failure is not None:
                raise failure
            return freed
        finally:
            del failure  # its traceback has this frame: a reference cycle

    def forget_locks(self) -> None:
        """Replace the locks of all members, in a forked child."""
        for spillable in living(self._members):
            spillable.forget_lock()

    def spill_rest(self, nbytes: int) -> Freed:
        """Spill all: enough may be free by now, but in too small pieces."""
        del nbytes
        return Freed(self._spill(self._by_use(), sys.maxsize))


_queues: "weakref.WeakKeyDictionary[Pool, dict[int, SpillQueue]]" = (
    weakref.WeakKeyDictionary()
)
_lock = threading.RLock()


def queue_of(pool: Pool, priority: int) -> SpillQueue:
    """Return the queue of a pool and a priority; the first call registers it."""
    with _lock:
        queues = _queues.setdefault(pool, {})
        queue = queues.get(priority)
        if queue is None:
            queue = queues[priority] = SpillQueue()
            pool.on_out_of_memory(queue.spill_oldest, priority)
            pool.on_out_of_memory(queue.spill_rest, priority)
        return queue


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # its owner may be a thread that the child does not have
    for queues in list(_queues.values()):
        for queue in queues.values():
            queue.forget_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
