"""Pools in a forked child: the lock is free, whoever held it in the parent."""

import os
import threading
import weakref

from madl.backends.protocol import Capability
from madl.hotpath import HotPool
from madl.hotpath.reentrancy import locks_held
from madl.pool.weak_sets import living

_pools: "weakref.WeakSet[HotPool]" = weakref.WeakSet()
_held: list[list[HotPool]] = []
# Two threads that fork at once would take the pools' locks in different orders, and
# give back each other's. Reentrant: a signal handler may fork while this thread does.
_turn = threading.RLock()


def protect(pool: HotPool) -> None:
    """Let no fork happen while another thread changes the pool's structures."""
    _pools.add(pool)


def all_pools() -> list[HotPool]:
    """Return every pool of this process, lanes left out."""
    return living(_pools)


def _before() -> None:
    _turn.acquire()
    # Before any lock: a signal handler may come between one and the note of it.
    locks_held[threading.get_ident()] = locks_held.get(threading.get_ident(), 0) + 1
    held: list[HotPool] = []
    _held.append(held)
    for pool in all_pools():
        # This thread may be in the pool itself, when a signal handler forks there.
        if pool._lock_holder != threading.get_ident():
            pool._lock.acquire()
            # What runs in this thread until the fork is a call within a call.
            pool._lock_holder = threading.get_ident()
            held.append(pool)


def _after_in_parent() -> None:
    held = _held.pop()
    for pool in held:
        pool._lock_holder = 0
        pool._lock.release()
    locks_held[threading.get_ident()] -= 1
    _turn.release()
    for pool in held:
        if pool._is_closed:  # a free that found the lock taken has left it to us
            pool._freed_after_close()


def _after_in_child() -> None:
    global _turn
    locks_held.clear()
    _turn = threading.RLock()
    for pool in all_pools():
        lock = threading.Lock()
        for lane in pool._family():
            lane._lock = lock
        pool._lock_holder = 0
        if Capability.SHARE in pool.capabilities:
            pool._keep_contents()  # which are the parent's as well
        pool._recount()
    _held.clear()  # last: a pool that nobody else refers to any more ends here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )
