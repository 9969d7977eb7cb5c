"""Pools that share one lock and one account with another pool, interpreted.

The compiled body does it by a pointer. Here such a pool is slower: it looks at the
other one whenever it counts.
"""

from typing import Any

SHARED = (
    "_allocation_count",
    "_binned_nbytes",
    "_live_high_water",
    "_live_nbytes",
    "_lock",
    "_lock_holder",
)


def _of_joined(name: str) -> property:
    def read(pool: Any) -> Any:  # noqa: ANN401  # whatever is shared
        return getattr(pool._joined, name)

    def write(pool: Any, value: Any) -> None:  # noqa: ANN401  # likewise
        if pool._joined is not None:  # else it is being made
            setattr(pool._joined, name, value)

    return property(read, write)


class JoinedPool:
    """Mixed into a ``HotPool`` whose ``_join`` is called before it is used."""

    _joined: Any = None

    def _join(self, other: Any) -> None:  # noqa: ANN401  # HotPool imports nothing of this
        """Share the lock and all that is counted with another pool."""
        self._joined = other


for _name in SHARED:
    setattr(JoinedPool, _name, _of_joined(_name))
