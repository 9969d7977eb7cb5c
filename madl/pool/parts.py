"""What the lanes of one pool share: lock, limits, tags, streams, debug mode."""

import weakref
from collections.abc import Callable
from typing import cast

from madl.backends.counted import CountedBackend
from madl.hotpath import Bins, HotPool
from madl.pool.debug.mode import DebugMode
from madl.pool.growth import Growth
from madl.pool.lock import PoolLock
from madl.pool.options import PoolOptions
from madl.pool.paging import Bands
from madl.pool.reclaim import Reclaimers
from madl.pool.streams import Served, Streams
from madl.pool.tracking import Tags
from madl.pool.zeroing import Zeroing


class Parts:
    """The parts of one pool. It refers to no pool object, so that these can end.

    Args:
        bins: Of the default stream, and so of the pool itself.
        backend: Its device.
        options: The pool's.
        make_lane: Makes the pool object and the lane of another stream.
        recover: Rebuilds the pool after an interruption; the lock is held.
        give_back_freed: Gives what is free back to the device once the pool is closed.
    """

    def __init__(
        self,
        bins: Bins,
        backend: CountedBackend,
        options: PoolOptions,
        *,
        make_lane: Callable[[HotPool, object], tuple[HotPool, Served]],
        recover: Callable[["Parts"], None],
        give_back_freed: Callable[["Parts"], None],
    ) -> None:
        self._give_back_freed = give_back_freed
        self.shared = bins.shared
        self.backend = backend
        self.options = options
        self.lock = PoolLock(
            self.shared,
            name=self.describe,
            recover=lambda: recover(self),
            after_close=self.give_back_freed,
        )
        self.streams = Streams(backend, self.lock, make_lane)
        self.growth = Growth(backend, cast("Bands", bins.bands), options)
        """Of the default stream; it knows those of the others."""
        self.budget = self.growth.budget
        self.dedicated = self.growth.dedicated
        self.reclaimers = Reclaimers()
        self.tags = Tags(backend.device, self.budget.device, self.reclaimers)
        self.zeroing = Zeroing(backend, options.zero)
        self.debug = DebugMode.of(backend, options)

    def give_back_freed(self) -> None:
        """Give what was freed since the pool was closed back to the device."""
        self._give_back_freed(self)

    def describe(self) -> str:
        """Return the text that ``repr`` shows of the pool."""
        live = self.shared.live_nbytes
        return f"<madl.Pool on {self.backend.device}: {live} bytes live>"


# Of the parts too: they keep the pool objects of other streams, and these the pool.
_all: "weakref.WeakKeyDictionary[HotPool, weakref.ref[Parts]]"
_all = weakref.WeakKeyDictionary()


def register(pool: HotPool, parts: Parts) -> None:
    """Let forks, reports and ``madl.trim`` know of a pool, as long as it lives."""
    _all[pool] = weakref.ref(parts)


def all_pools() -> list[tuple[HotPool, Parts]]:
    """Return every pool of this process, lanes of streams left out, with its parts."""
    found = []
    for reference in _all.keyrefs():  # a copy: threads and finalizers add to it
        pool = reference()
        parts = None if pool is None else _all[pool]()
        if pool is not None and parts is not None:
            found.append((pool, parts))
    return found
