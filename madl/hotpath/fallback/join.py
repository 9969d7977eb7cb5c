"""Pools that share one lock and one account with another pool, interpreted."""

from typing import Any


class JoinedPool:
    """Mixed into a ``HotPool`` whose ``_join`` is called before it is used."""

    _joined: Any

    def _join(self, other: Any) -> None:  # noqa: ANN401  # HotPool, which is above this
        """Share the lock and all that is counted with another pool."""
        self._joined = other
        self._account = other._account
        self._lock = other._lock

    @property
    def _lock_holder(self) -> int:
        holder: int = self._joined._lock_holder
        return holder

    @_lock_holder.setter
    def _lock_holder(self, ident: int) -> None:
        if self._joined is not None:  # else it is being made
            self._joined._lock_holder = ident
