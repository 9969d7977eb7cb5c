"""The lock of a pool: who holds it, re-entrancy, and what an interruption leaves."""

import threading
from collections.abc import Callable
from typing import TypeVar

from madl.errors import MadlError
from madl.hotpath import Shared
from madl.hotpath.reentrancy import locks_held

_Result = TypeVar("_Result")


class PoolLock:
    """The lock that a pool and its lanes share. It knows its holder.

    Not reentrant: what finalizers and signal handlers allocate in the thread that holds
    it gets a dedicated reservation instead, and what they free waits on a list.

    Args:
        shared: Where the hot path reads who holds the lock, and
            whether a change was interrupted.
        name: Returns the pool's text, for errors.
        recover: Rebuilds the pool after an interruption, with the lock held.
        after_close: Called each time that a closed pool's lock is released.
    """

    is_closed = False
    """Whether the pool allocates nothing any more."""

    def __init__(
        self,
        shared: Shared,
        *,
        name: Callable[[], str],
        recover: Callable[[], None],
        after_close: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._name = name
        self._recover = recover
        self._after_close = after_close

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._shared.lock_holder == threading.get_ident()

    def hold(self, act: Callable[[], _Result]) -> _Result:
        """Call ``act`` with the lock held.

        Takes a function, and is no context manager: a signal handler that raises
        between ``__enter__`` and the body of ``with`` would leave the lock locked.

        Raises:
            RuntimeError: This thread holds it already; waiting would be a deadlock.
        """
        shared = self._shared
        ident = threading.get_ident()
        if shared.lock_holder == ident:
            raise RuntimeError(
                f"{self._name()} is in the middle of a call of this thread; signal "
                "handlers and finalizers may allocate and free, nothing else"
            )
        held = locks_held.get(ident, 0)
        try:
            with shared.lock:
                # No call between the lock and these stores: a handler that came there
                # would not be seen to be inside, and wait for its own thread.
                shared.lock_holder = ident
                locks_held[ident] = held + 1
                try:
                    if shared.was_interrupted:
                        self._recover()
                    return act()
                except MadlError:
                    raise
                except BaseException:  # a signal handler's: what it cut off is unknown
                    shared.was_interrupted = True
                    raise
                finally:
                    locks_held[ident] = held
                    shared.lock_holder = 0
        finally:
            if self.is_closed:
                self._after_close()

    def try_hold(self, act: Callable[[], object]) -> bool:
        """Call ``act`` as ``hold`` does, if the lock is free; return whether it was."""
        shared = self._shared
        ident = threading.get_ident()
        held = locks_held.get(ident, 0)
        # As in ``try_lock``, whose function a handler could run in before the lock is
        # known to be held: no call from here to the stores.
        (is_locked,) = map(shared.lock.acquire, (False,))
        if not is_locked:
            return False
        shared.lock_holder = ident
        locks_held[ident] = held + 1
        try:
            act()
            return True
        except MadlError:
            raise
        except BaseException:  # as in hold
            shared.was_interrupted = True
            raise
        finally:
            locks_held[ident] = held
            shared.lock_holder = 0
            shared.lock.release()
