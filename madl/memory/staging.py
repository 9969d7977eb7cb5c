"""Staged copies: pageable host memory to and from a device through pinned blocks.

A device copies by itself only from and to memory that is pinned. So the CPU copies one
piece into a pinned block, or out of it, while the device copies another.
"""

import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self, cast

from madl.backends.protocol import (
    Backend,
    Capability,
    StagedCopyBackend,
    Staging,
    StreamOrderedBackend,
)
from madl.errors import BackendError, OutOfMemoryError
from madl.hotpath import Memory
from madl.memory.place import Part
from madl.memory.views import view

PIECE_NBYTES = 4 << 20
"""So much is in each of the two blocks. Not measured on a GPU: `nox -s gpu` does it."""

SMALLEST_NBYTES = 16 << 20
"""The driver gets a smaller copy whole."""

_makers: list[Callable[[str], Any]] = []
_pools: dict[str, Any] = {}


def take_from(make_pool: Callable[[str], Any]) -> None:
    """Say what makes a pool, by a device's name; pools are above this module."""
    _makers[:] = [make_pool]


def open_stage(backend: Backend, host: memoryview, stream: object) -> "Stage | None":
    """Return two blocks for a copy to or from ``host``, if it should not go directly.

    It goes directly when it is small, when the backend says so, or when there is no
    pinned memory left.
    """
    if host.nbytes < SMALLEST_NBYTES or not _makers:
        return None
    if Capability.STAGED_COPY not in backend.capabilities:
        return None
    staged = cast("StagedCopyBackend", backend)
    wanted = staged.staging(host, stream)
    if wanted is None:
        return None
    try:
        return Stage(staged, wanted)
    except OutOfMemoryError:
        return None


class Stage:
    """Two pinned blocks, which go back to their pool at the end of a ``with`` block.

    Then the device is done with them, also when the copy has failed.
    """

    def __init__(self, copying: StagedCopyBackend, wanted: Staging) -> None:
        self._copying = copying
        self._ordered = cast("StreamOrderedBackend", copying)
        self._wanted = wanted
        with contextlib.ExitStack() as held:
            self._views = [view(held.enter_context(_block(wanted))) for _ in range(2)]
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._held:
            self._views.clear()  # before the blocks are freed: views pin them
            try:
                self._wanted.finish()
            except BackendError:  # the context is broken, so no copy is in flight
                if error is None:
                    raise

    def write(self, to: Part, of: memoryview) -> None:
        """Copy host memory to a part of the device as long as it."""
        events: deque[object] = deque()
        for block, start, stop in self._turns(of.nbytes):
            if len(events) == len(self._views):
                self._ordered.synchronize(events.popleft())
            _copy(block, of[start:stop])
            self._copying.copy_from_host(
                to.reservation, to.offset + start, block, stream=self._wanted.stream
            )
            events.append(self._ordered.record(self._wanted.stream))

    def read(self, to: memoryview, of: Part) -> None:
        """Copy a part of the device to host memory as long as it."""
        queued: deque[tuple[object, memoryview, memoryview]] = deque()
        for block, start, stop in self._turns(of.nbytes):
            if len(queued) == len(self._views):
                self._empty(*queued.popleft())
            self._copying.copy_to_host(
                of.reservation, of.offset + start, block, stream=self._wanted.stream
            )
            event = self._ordered.record(self._wanted.stream)
            queued.append((event, block, to[start:stop]))
        while queued:
            self._empty(*queued.popleft())

    def _empty(self, event: object, block: memoryview, to: memoryview) -> None:
        self._ordered.synchronize(event)
        _copy(to, block)

    def _turns(self, nbytes: int) -> Iterator[tuple[memoryview, int, int]]:
        """Yield each piece of a copy, after the place for it in a block."""
        for number, start in enumerate(range(0, nbytes, PIECE_NBYTES)):
            stop = min(start + PIECE_NBYTES, nbytes)
            yield self._views[number % len(self._views)][: stop - start], start, stop


def _copy(to: memoryview, of: memoryview) -> None:
    import numpy as np

    # NumPy's copy, unlike a memoryview's, releases the interpreter lock.
    np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(of, np.uint8))


def _block(wanted: Staging) -> Memory:
    pool = _pools.get(wanted.device)
    if pool is None:
        # Two threads may make one each; the one that loses the race has no arena.
        pool = _pools.setdefault(wanted.device, _makers[0](wanted.device))
    # In a context without tags: no tag's limit is meant for it.
    block: Memory = contextvars.Context().run(pool.allocate, PIECE_NBYTES)
    return block
