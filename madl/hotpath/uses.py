"""Counting the ``with`` blocks that use an object, which may move while none does."""

import itertools
import threading
from typing import Generic, TypeVar

_Used = TypeVar("_Used")

_ends = itertools.count(1)


class Uses(Generic[_Used]):
    """A context manager that counts its users.

    Compiled, entering and counting are one step to signal handlers, and so is leaving:
    whatever is interrupted, an object is in use exactly while a ``with`` block is in
    it. Here a handler that raises as a block begins or ends may leave it in use.
    """

    def __init__(self) -> None:
        # Re-entrant: a restore allocates, and the pool may ask this thread to spill.
        self.lock = threading.RLock()
        self.users = 0
        self.last_used = next(_ends)
        """When a use ended last; of two objects the greater one ended later."""

    def restored(self) -> _Used:
        """Return what is used, brought back if need be. The lock is held."""
        raise NotImplementedError

    def __enter__(self) -> _Used:
        with self.lock:
            used = self.restored()
            self.users += 1
            return used

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.users -= 1
            self.last_used = next(_ends)
