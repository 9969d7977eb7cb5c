"""The life of pools in a process: forks, idle times, closing, interpreter shutdown."""

import atexit
import contextlib
import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from madl.backends.protocol import Capability
from madl.errors import BackendCallError, BackendError, MadlError, MemoryCorruptionError
from madl.errors.damage import Damage
from madl.hotpath import BlockState, HotPool
from madl.hotpath.reentrancy import living, locks_held
from madl.pool.parts import Parts, all_pools
from madl.pool.recovery import recover


class Trimmable(Protocol):
    """What a pool is, seen from here."""

    @property
    def is_closed(self) -> bool:
        """Whether ``close()`` has been called."""

    def trim(self, keep: int = 0) -> int:
        """Give what is free back to the device."""

    def activity(self) -> tuple[int, int]:
        """Return what changes with each allocation and each free."""


class Ending:
    """Says whether it is too late to give anything to a device.

    ``sys`` tells it of the main interpreter only. When a subinterpreter ends, the
    process goes on, and finalizers run while the names of modules go away, one after
    the other. So pools give back what is free before that, and what finalizers ask at
    the end is an argument of theirs, not a name of a module.
    """

    def __init__(self) -> None:
        self._is_finalizing = sys.is_finalizing
        self._is_over = False
        self._pools: weakref.WeakSet[Trimmable] = weakref.WeakSet()

    def __call__(self) -> bool:
        """Return whether it is."""
        return self._is_over or self._is_finalizing()

    def trim_at_end(self, pool: Trimmable) -> None:
        """Let a pool give back what is free when a subinterpreter ends."""
        self._pools.add(pool)

    def come(self) -> None:
        """End a subinterpreter; what is live in it stays taken.

        In the main one threads may use pools to the last, and the operating system
        takes all back.
        """
        if _is_main_interpreter():
            return
        for pool in living(self._pools):
            with contextlib.suppress(MadlError, RuntimeError):
                pool.trim()
        self._is_over = True


def _is_main_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # before Python 3.13
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True  # of a Python that has no others


is_ending = Ending()
atexit.register(is_ending.come)


def close(parts: Parts) -> list[BlockState]:
    """Let a pool allocate nothing any more; give back what is free, return the rest.

    The lock is held. Idempotent.
    """
    with contextlib.suppress(BackendError):
        look_for_damage(parts)
    parts.lock.is_closed = True
    # They may hold blocks of the pool, and these the pool.
    parts.reclaimers.forget()
    for lane in parts.streams.lanes:
        lane.stop_placing()
    _release_all(parts)
    return [state for state in parts.streams.states() if state.is_live]


def look_for_damage(parts: Parts) -> None:
    """In debug mode, look at all guards and keep what is found. The lock is held."""
    if parts.debug is not None:
        parts.debug.look(parts.growth, parts.streams.lanes[0].stream)


def _release_all(parts: Parts) -> None:
    """Give back all that is free of a closed pool, even of a lost device."""
    lane, growth = parts.streams.lanes[0], parts.growth
    with contextlib.suppress(BackendCallError):
        lane.take_back_all()
    with contextlib.suppress(BackendCallError):
        if parts.zeroing.waits:
            growth.settle()  # then other streams keep nothing from that
            lane.take_back_pending()
        growth.let_go()
    lane.take_back_pending(is_lost=True)
    growth.trim(0)


def give_back_freed(
    parts: Parts,
    is_ending: Callable[[], bool] = is_ending,  # this module is gone at shutdown
) -> None:
    """Give what was freed since a pool was closed back. Runs in finalizers.

    At least once: what was freed may have been taken back already, by a miss that came
    just before the pool was closed and gives nothing to the device.
    """
    while not is_ending():
        if not parts.lock.try_hold(lambda: _release_freed(parts)):
            return  # the thread that holds the lock comes here when it releases it
        if not any(lane.bins.has_returned for lane in parts.streams.lanes):
            return


def _release_freed(parts: Parts) -> None:
    # No free raises because of the device; the next one tries again.
    with contextlib.suppress(MadlError):
        if parts.shared.was_interrupted:
            recover(parts)
        _release_all(parts)


@atexit.register
def _tell_damage_at_exit() -> None:
    """Raise what debug mode finds at the end; the interpreter prints it and exits."""
    found: list[Damage] = []
    for _, parts in all_pools():
        if parts.debug is not None:
            # The thread that has the lock may be stopped by the shutdown, for ever.
            with contextlib.suppress(BackendError):
                parts.lock.try_hold(functools.partial(look_for_damage, parts))
            found += parts.debug.take_damage()
    if found:
        raise MemoryCorruptionError(tuple(found))


def trim_when_idle(pool: Trimmable, after_s: float, keep: int) -> Callable[[], None]:
    """Trim a pool whenever nothing happened for a time; return what ends that."""
    if not isinstance(after_s, int | float):
        raise TypeError(f"after_s must be a number of seconds, got {after_s!r}")
    if not 0 < after_s <= threading.TIMEOUT_MAX:
        most = int(threading.TIMEOUT_MAX)
        raise ValueError(f"after_s must be positive, at most {most}, got {after_s}")
    is_stopped = threading.Event()
    work = weakref.ref(pool), is_stopped, after_s, keep
    threading.Thread(
        target=_trim_while_idle, args=work, name="madl idle trim", daemon=True
    ).start()
    return is_stopped.set


def _trim_while_idle(
    reference: "weakref.ref[Trimmable]",
    is_stopped: threading.Event,
    after_s: float,
    keep: int,
) -> None:
    """Trim a pool each time it has been idle, from a thread of its own.

    What has happened is read from counters, so that no allocation keeps the time.
    """
    seen: tuple[int, int] | None = None
    is_trimmed = False
    while not is_stopped.wait(after_s):
        pool = reference()
        if pool is None or pool.is_closed:
            return
        now = pool.activity()
        if now != seen:
            seen, is_trimmed = now, False
        elif not is_trimmed:
            is_trimmed = True
            # A device that refuses is met again by the next call that needs it.
            with contextlib.suppress(MadlError):
                pool.trim(keep)
        del pool  # else this thread would keep it while it waits


# For each fork under way: the pools whose locks it holds.
_held: list[list[tuple[HotPool, Parts]]] = []
# Two threads that fork together would take the pools' locks in different orders, and
# release each other's. Reentrant: a signal handler may fork while this thread does.
_turn = threading.RLock()


def _before_fork() -> None:
    """Take every pool's lock: no fork while a thread changes a pool's structures."""
    _turn.acquire()
    ident = threading.get_ident()
    # Before any lock: a signal handler may come between one and the note of it, and
    # what it allocates must not wait for a lock of this thread.
    locks_held[ident] = locks_held.get(ident, 0) + 1
    held: list[tuple[HotPool, Parts]] = []
    _held.append(held)
    for pool, parts in all_pools():
        # This thread may be in the pool itself, when a signal handler forks there.
        if not parts.lock.is_mine:
            parts.shared.lock.acquire()
            # What runs in this thread until the fork is re-entrant.
            parts.shared.lock_holder = ident
            held.append((pool, parts))


def _after_fork_in_parent() -> None:
    held = _held.pop()
    for _, parts in held:
        parts.shared.lock_holder = 0
        parts.shared.lock.release()
    locks_held[threading.get_ident()] -= 1
    _turn.release()
    for _, parts in held:
        if parts.lock.is_closed:  # a free that found the lock taken has left it to us
            parts.give_back_freed()


def _after_fork_in_child() -> None:
    """Make every lock anew: the thread that held it in the parent is not here."""
    global _turn
    locks_held.clear()
    _turn = threading.RLock()
    for _, parts in all_pools():
        parts.shared.renew_lock()
        if Capability.SHARE in parts.backend.capabilities:
            for lane in parts.streams.lanes:
                lane.bins.keep_contents()  # which are the parent's as well
        parts.shared.recount(parts.streams.states)
    _held.clear()  # after the loop: a pool that ends here has its lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
