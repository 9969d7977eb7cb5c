"""What keeps counts right where there is no interpreter lock: ``+=`` loses some there.

One lock for all that counts, since finalizers may count in the middle of a count.
"""

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from madl.hotpath.reentrancy import locks_held

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

HAS_INTERPRETER_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Counting:
    """A lock that is held for a few instructions, which call nobody who waits.

    Reentrant. Signal handlers and finalizers come even then, and may allocate: they
    are inside, and so wait for no pool, whose lock may be held by a thread that counts.
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

if not HAS_INTERPRETER_LOCK:
    counting = Counting()
    _lock = counting.lock
    if hasattr(os, "register_at_fork"):
        # Whoever holds it in another thread is gone in the child, and never leaves.
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
    lock = counting  # of its own: memory may be dropped when modules are empty already

    @functools.wraps(function)
    def held(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with lock:
            return function(*args, **kwargs)

    return held
