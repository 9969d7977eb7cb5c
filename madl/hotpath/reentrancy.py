"""Re-entrancy: who is inside a pool, and counting where there is no interpreter lock.

A finalizer or a signal handler may run in the middle of a call of one pool, and
allocate from another one, whose lock is held by a thread that waits for the first:
a deadlock. So a thread that is inside a pool never waits for a pool.
"""

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import ParamSpec, Protocol, TypeVar


class Lock(Protocol):
    """A lock of the interpreter's own, so that each method is one step."""

    def acquire(self, blocking: bool = ...) -> bool:
        """Take it, or return False."""

    def release(self) -> None:
        """Give it back."""


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Member = TypeVar("_Member")

locks_held: dict[int, int] = {}
"""How many pools' locks each thread holds. An entry is changed without a call, so no
signal handler runs between that and the lock; therefore entries stay, with 0."""


def is_inside() -> bool:
    """Return whether this thread holds the lock of a pool."""
    return locks_held.get(threading.get_ident(), 0) > 0


HAS_INTERPRETER_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Counting:
    """One lock for all that counts, held for a few instructions that never wait.

    Reentrant. Signal handlers and finalizers run even then, and may allocate: they are
    inside, and so wait for no pool, whose lock may be held by a thread that counts.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        ident = threading.get_ident()
        held = locks_held.get(ident, 0)
        locks_held[ident] = held + 1
        try:
            self.lock.acquire()
        except BaseException:  # a signal handler's, while it waited
            locks_held[ident] = held
            raise

    def __exit__(self, *error: object) -> None:
        self.lock.release()
        locks_held[threading.get_ident()] -= 1


counting: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
"""Held around ``+=``, which is atomic only where there is an interpreter lock."""

if not HAS_INTERPRETER_LOCK:
    counting = Counting()
    _lock = counting.lock
    if hasattr(os, "register_at_fork"):
        # Another thread's hold would last for ever in the child.
        os.register_at_fork(
            before=_lock.acquire,
            after_in_parent=_lock.release,
            after_in_child=_lock.release,
        )


def while_counting(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Hold ``counting`` during a function.

    With an interpreter lock it is the function itself: a context manager that does
    nothing costs more than most counts.
    """
    if HAS_INTERPRETER_LOCK:
        return function
    lock = counting  # bound: memory may be dropped when modules are empty already

    @functools.wraps(function)
    def held(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with lock:
            return function(*args, **kwargs)

    return held


def try_lock(lock: Lock, act: Callable[[], _Result], *, otherwise: _Result) -> _Result:
    """Return what ``act`` returns, called with a lock held; else, ``otherwise``.

    What is called may be interrupted anywhere by a signal handler that raises, and the
    lock is released. A handler runs where a call returns: between an ``acquire()`` and
    the ``try`` behind it the lock would be held for ever.
    """
    # No call of Python's: unpacking calls acquire() and stores what it returns in two
    # instructions, between which no signal is looked for.
    (is_locked,) = map(lock.acquire, (False,))
    if not is_locked:
        return otherwise
    try:
        return act()
    finally:
        lock.release()


def living(members: Iterable[_Member]) -> list[_Member]:
    """Return what a weak set, or the keys of a weak dict, are now.

    They are gone through in Python, so threads and finalizers add to them in the middle
    of it, and it refuses to go on.
    """
    while True:
        try:
            return list(members)
        except RuntimeError:
            continue
