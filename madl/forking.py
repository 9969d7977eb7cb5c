"""Pools in a forked child: the lock is free, whoever held it in the parent."""

import os
import threading
import weakref

from madl.hotpath import HotPool

_pools: "weakref.WeakSet[HotPool]" = weakref.WeakSet()
_held: list[HotPool] = []


def protect(pool: HotPool) -> None:
    """Let no fork happen while another thread changes the pool's structures."""
    _pools.add(pool)


def _before() -> None:
    for pool in list(_pools):
        # This thread may be in the pool itself, when a signal handler forks there.
        if pool._lock_holder != threading.get_ident():
            pool._lock.acquire()
            _held.append(pool)


def _after_in_parent() -> None:
    while _held:
        _held.pop()._lock.release()


def _after_in_child() -> None:
    _held.clear()
    for pool in list(_pools):
        pool._lock = threading.Lock()
        pool._lock_holder = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )
