"""Give memory back after a time without allocations, from a thread of its own.

Only for pools that ask for it. What has happened is read from counters, so that no
allocation has to keep the time.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from madl.errors import MadlError


class Trimmable(Protocol):
    """What a pool is, seen from here."""

    @property
    def is_closed(self) -> bool:
        """Whether ``close()`` has been called."""

    def trim(self, keep: int) -> int:
        """Give memory back to the device."""

    def activity(self) -> tuple[int, int]:
        """Return what changes with each allocation and each free."""


class IdleTrim:
    """Trims one pool each time it has been idle."""

    def __init__(self, pool: Trimmable, after_s: float, keep: int) -> None:
        self._pool = weakref.ref(pool)
        self._keep = keep
        self._after_s = after_s
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="madl idle trim", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Trim no more."""
        self._is_stopped.set()

    def _run(self) -> None:
        seen: tuple[int, int] | None = None
        is_trimmed = False
        while not self._is_stopped.wait(self._after_s):
            pool = self._pool()
            if pool is None or pool.is_closed:
                return
            now = pool.activity()
            if now != seen:
                seen, is_trimmed = now, False
            elif not is_trimmed:
                is_trimmed = True
                self._trim(pool)
            del pool  # else this thread would keep it while it waits

    def _trim(self, pool: Trimmable) -> None:
        try:
            pool.trim(self._keep)
        except MadlError:
            # The device refused: whoever uses the pool next hears of it.
            return


def trim_when_idle(pool: Trimmable, after_s: float, keep: int) -> Callable[[], None]:
    """Trim a pool whenever nothing happened for a time; return what ends that."""
    if not isinstance(after_s, int | float):
        raise TypeError(f"after_s must be a number of seconds, got {after_s!r}")
    if not 0 < after_s <= threading.TIMEOUT_MAX:
        most = int(threading.TIMEOUT_MAX)
        raise ValueError(f"after_s must be positive, at most {most}, got {after_s}")
    return IdleTrim(pool, after_s, keep).stop
