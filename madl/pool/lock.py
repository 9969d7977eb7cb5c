"""The lock of a pool: who holds it, who must not wait for it, and what ends in it."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from madl.errors import MadlError
from madl.hotpath import HotPool
from madl.hotpath.reentrancy import locks_held
from madl.pool.growth import Growth
from madl.pool.recovery import recover

_Result = TypeVar("_Result")


class LockedPool(HotPool):
    """What a pool does under its lock, which its lanes share."""

    _was_closed = False
    _growth: Growth

    @property
    def _head(self) -> Any:  # noqa: ANN401  # Pool, which is not known here
        """The pool itself, for whatever is one of its lanes."""
        return self

    @property
    def _is_closed(self) -> bool:
        closed: bool = self._head._was_closed
        return closed

    def _locked(self, act: Callable[[], _Result]) -> _Result:
        """Call ``act`` while the pool's lock is held, which is not reentrant.

        Not a context manager: when a signal handler raises between its first line and
        the block, the lock is held until somebody drops the error.
        """
        ident = threading.get_ident()
        if self._lock_holder == ident:
            raise RuntimeError(
                f"{self!r} is in the middle of a call of this thread; signal handlers "
                "and finalizers may allocate and free, nothing else"
            )
        held = locks_held.get(ident, 0)
        head = self._head  # a lane's own holder calls a setter
        try:
            with self._lock:
                # No call in between: who came there would wait for ever.
                head._lock_holder = ident
                locks_held[ident] = held + 1
                try:
                    if self._was_interrupted:
                        recover(self._head, self._growth)
                    return act()
                except MadlError:
                    raise
                except BaseException:  # a signal handler's, and nobody knows in what
                    self._was_interrupted = True
                    raise
                finally:
                    locks_held[ident] = held
                    head._lock_holder = 0
        finally:
            if self._is_closed:
                self._freed_after_close()

    def _unless_locked(self, act: Callable[[], object]) -> bool:
        """Call ``act`` as ``_locked`` does, if the lock is free; return whether."""
        ident = threading.get_ident()
        held = locks_held.get(ident, 0)
        head = self._head
        locked: list[bool] = []
        try:
            # In one call, so that a signal handler cannot come before it is noted.
            locked.extend(map(self._lock.acquire, (False,)))
            if True not in locked:
                return False
            head._lock_holder = ident
            locks_held[ident] = held + 1
            act()
            return True
        except MadlError:
            raise
        except BaseException:  # as in _locked
            self._was_interrupted = True
            raise
        finally:
            if True in locked:
                locks_held[ident] = held
                head._lock_holder = 0
                self._lock.release()
