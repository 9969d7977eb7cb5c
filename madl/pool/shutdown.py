"""Whether this interpreter ends: ``sys`` tells it of the main one only.

When a subinterpreter ends, the process goes on, and finalizers run while the names of
modules go away, one after the other. So pools give back what is free before that.
"""

import atexit
import contextlib
import importlib
import sys
import weakref
from typing import Protocol

from madl.errors import MadlError
from madl.pool.weak_sets import living


class Trimmable(Protocol):
    """What a pool is, seen from here."""

    def trim(self, keep: int = 0) -> int:
        """Give what is free back to the device."""


class Ending:
    """Says whether it is too late to give anything to a device.

    Whoever asks at the end has to hold it: names of modules are gone by then.
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
