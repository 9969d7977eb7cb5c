"""Limits: how much pools have committed, and how much more they may.

A limit refuses, a soft limit warns. Both exist for a pool and for all pools of a device
together; tags have limits of live bytes.
"""

import itertools
import os
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable

from madl import stacks
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability
from madl.errors import OutOfMemoryError, OutOfMemoryReport
from madl.hotpath.reentrancy import counting, living, while_counting
from madl.sizes import format_nbytes

_MOST_SAMPLES = 64


class SoftLimitWarning(UserWarning):
    """More is taken than a soft limit allows.

    Not a ``ResourceWarning``, which Python hides unless asked: a soft limit is set
    by those who want to hear of it.
    """


class SoftLimit:
    """Knows when a figure has passed a limit, and whether that was told.

    Looked at under locks; the warning comes later, when none is held, since filters of
    warnings are the user's code.
    """

    def __init__(self, limit_nbytes: int | None = None) -> None:
        self.limit_nbytes = limit_nbytes
        self.is_above = False
        self.is_news = False
        """Whether it has been passed, and no warning was given yet."""

    def look(self, nbytes: int) -> None:
        """Take note of what the figure is now."""
        if self.limit_nbytes is None:
            return
        is_above = nbytes > self.limit_nbytes
        self.is_news = is_above and (self.is_news or not self.is_above)
        self.is_above = is_above

    def tell(self, what: str) -> None:
        """Warn, if there is news. Raises where warnings are errors."""
        if not self.is_news or self.limit_nbytes is None:
            return
        self.is_news = False
        warnings.warn(
            f"{what} passed the soft limit of {format_nbytes(self.limit_nbytes)}",
            SoftLimitWarning,
            stacklevel=stacks.levels(),
        )


class DeviceBudget:
    """Committed bytes of all pools of a device, under one limit.

    Pools have locks of their own, so what they share has one too. It is held for some
    arithmetic only, and reentrant, since a finalizer may run there. A thread that waits
    for it holds the lock of a pool, so what a signal handler allocates there is
    dedicated and waits for no pool: no deadlock.
    """

    def __init__(self) -> None:
        self.limit_nbytes: int | None = None
        self.soft = SoftLimit()
        # By pool, so that one whose call was interrupted can correct its part. Both
        # change together, and nothing is called between them: see the class.
        self._drawn: defaultdict[object, int] = defaultdict(int)
        self.committed_nbytes = 0
        """Bytes that all pools have committed, or are about to."""
        self._tags: dict[str, TagBudget] = {}
        self._lock = threading.RLock()
        _all.add(self)

    def tag(self, name: str) -> "TagBudget":
        """Return what all pools have of a tag, and of the tags below it."""
        # Atomic: of two threads both get what the first one put there.
        return self._tags.setdefault(name, TagBudget(name))

    @property
    def room_nbytes(self) -> int | None:
        """Bytes that may still be committed; ``None`` without a limit."""
        if self.limit_nbytes is None:
            return None
        return max(self.limit_nbytes - self.committed_nbytes, 0)

    def claim(self, pool: object, nbytes: int) -> bool:
        """Count bytes of a pool as committed, unless that would pass the limit."""
        with self._lock:
            committed = self.committed_nbytes + nbytes
            if self.limit_nbytes is not None and committed > self.limit_nbytes:
                return False
            self.committed_nbytes = committed
            self._drawn[pool] += nbytes
            self.soft.look(committed)
            return True

    def give_back(self, pool: object, nbytes: int) -> None:
        """Count bytes of a pool as committed no more."""
        with self._lock:
            self.committed_nbytes -= nbytes
            self._drawn[pool] -= nbytes
            self._look_at(pool)

    def correct(self, pool: object, nbytes: int) -> None:
        """Set what a pool has committed."""
        with self._lock:
            self.committed_nbytes += nbytes - self._drawn[pool]
            self._drawn[pool] = nbytes
            self._look_at(pool)

    def _look_at(self, pool: object) -> None:
        """Keep no pool that has nothing; see where the limits stand."""
        if not self._drawn[pool]:
            del self._drawn[pool]
        self.soft.look(self.committed_nbytes)

    def drawn_by(self, pool: object) -> int:
        """Return the bytes that one pool has committed, or is about to."""
        return self._drawn.get(pool, 0)

    def set_limits(
        self, limit_nbytes: int | None, soft_limit_nbytes: int | None
    ) -> None:
        """Bound what is committed from now on."""
        soft = SoftLimit(soft_limit_nbytes)
        with self._lock:
            self.limit_nbytes = limit_nbytes
            self.soft = soft
        soft.look(self.committed_nbytes)

    def forget_lock(self) -> None:
        """Make the lock anew in a forked child: its holder may be gone."""
        self._lock = threading.RLock()
        self.committed_nbytes = sum(self._drawn.values())


class TagBudget:
    """Live bytes of a tag, and of the tags below it, in all pools of a device.

    Changed within ``counting`` only.
    """

    __slots__ = ("__weakref__", "live_nbytes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.live_nbytes = 0

    def claim(self, nbytes: int, limit_nbytes: int) -> bool:
        """Count bytes as live, unless that would pass a limit."""
        # Nothing is called between load and store, so no other thread runs there.
        live_nbytes = self.live_nbytes + nbytes
        if live_nbytes > limit_nbytes:
            return False
        self.live_nbytes = live_nbytes
        return True


class Budget:
    """Committed bytes of all arenas of a pool, under its limit and its device's.

    Kept by the arenas as they commit and decommit. The pool's lock is held, or another
    thread makes a dedicated reservation without it.
    """

    def __init__(
        self,
        limit_nbytes: int | None,
        soft_limit_nbytes: int | None,
        device: DeviceBudget,
    ) -> None:
        self.limit_nbytes = limit_nbytes
        self.device = device
        self.soft = SoftLimit(soft_limit_nbytes)
        self.committed_nbytes = 0
        self.high_water_nbytes = 0
        self._claimed_nbytes = 0
        self._changes = 0  # commits and decommits so far
        self._samples: list[tuple[int, int]] = []

    @property
    def room_nbytes(self) -> int | None:
        """Bytes that may still be committed; ``None`` without a limit."""
        shared = self.device.room_nbytes
        if self.limit_nbytes is None:
            return shared
        own = self.limit_nbytes - self.committed_nbytes - self._claimed_nbytes
        return own if shared is None else min(own, shared)

    def refusal(self, device: str, nbytes: int) -> OutOfMemoryError:
        """Return the error for a request that is over the limit."""
        report = OutOfMemoryReport(device, nbytes, limit_nbytes=self.limit_nbytes)
        return OutOfMemoryError(report)

    @while_counting
    def claim(self, nbytes: int) -> bool:
        """Count bytes that are about to be committed, unless that passes a limit."""
        # Claimed before it is compared: a finalizer that allocates between the two
        # would else be granted the same bytes.
        self._claimed_nbytes += nbytes
        own = self.committed_nbytes + self._claimed_nbytes
        is_over = self.limit_nbytes is not None and own > self.limit_nbytes
        if is_over or not self.device.claim(self, nbytes):
            self._claimed_nbytes -= nbytes
            return False
        return True

    @while_counting
    def give_back(self, nbytes: int) -> None:
        """Undo a claim."""
        self._claimed_nbytes -= nbytes
        self.device.give_back(self, nbytes)

    @while_counting
    def commit(self, nbytes: int) -> None:
        """Note that bytes have been taken from the device, which were claimed."""
        self._changes += 1
        self._claimed_nbytes -= nbytes
        self.committed_nbytes += nbytes
        self.soft.look(self.committed_nbytes)
        if self.committed_nbytes > self.high_water_nbytes:
            self.high_water_nbytes = self.committed_nbytes

    @while_counting
    def decommit(self, nbytes: int) -> None:
        """Note that bytes have been given back to the device."""
        self._changes += 1
        self.committed_nbytes -= nbytes
        self.soft.look(self.committed_nbytes)
        self.device.give_back(self, nbytes)

    def correct(self, found: Callable[[], int]) -> None:
        """Set what is committed, after a call that was interrupted while it counted.

        Args:
            found: Adds up what the arenas have. Called again when a signal handler or a
                finalizer has committed or decommitted something while it did.
        """
        while True:
            before = self._changes
            nbytes = found()
            with counting:  # calls nothing, so no handler runs in it
                if self._changes == before:
                    self._claimed_nbytes = 0
                    self.committed_nbytes = nbytes
            self.device.correct(self, nbytes)
            if self._changes == before:
                return

    def counted(self) -> tuple[int, int]:
        """Return what is committed, and what of the device's count is this pool's."""
        drawn = self.device.drawn_by(self)
        return self.committed_nbytes, drawn - self._claimed_nbytes

    def sample(self, allocation_count: int) -> None:
        """Note after how many allocations so much was committed."""
        if self._samples and self._samples[-1][1] >= self.high_water_nbytes:
            return
        if len(self._samples) >= _MOST_SAMPLES:
            del self._samples[::2]
        self._samples.append((allocation_count, self.high_water_nbytes))

    def grows_until(self, allocation_count: int) -> bool:
        """Return whether each quarter of all allocations needed more than the last.

        A program that has all that it needs after some time does not grow any more.
        """
        quarters = [allocation_count * part // 4 for part in range(5)]
        reached = [
            max((high for count, high in self._samples if count <= stop), default=0)
            for stop in quarters
        ]
        least = self.high_water_nbytes // 20
        return allocation_count > 0 and all(
            after - before > least for before, after in itertools.pairwise(reached[1:])
        )


_all: "weakref.WeakSet[DeviceBudget]" = weakref.WeakSet()
_by_name: dict[str, DeviceBudget] = {}
_simulated: "weakref.WeakKeyDictionary[object, DeviceBudget]" = (
    weakref.WeakKeyDictionary()
)


def device_budget(backend: CountedBackend) -> DeviceBudget:
    """Return the budget that all pools of a device share.

    Each simulated device is one of its own, whatever its name.
    """
    if Capability.SIMULATED in backend.capabilities:
        return _simulated.setdefault(backend.backend, DeviceBudget())
    return _by_name.setdefault(backend.device, DeviceBudget())


def _after_fork_in_child() -> None:
    for budget in living(_all):
        budget.forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
