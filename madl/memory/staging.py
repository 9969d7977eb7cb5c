"""Large copies between pageable host memory and a device, through pinned blocks.

A device copies by itself only from and to memory that is pinned. So the CPU copies one
piece into a pinned block, or out of it, while the device copies another.
"""

import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from madl.backends.counted import CountedBackend
from madl.backends.staging import Staging
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


def open_stage(
    backend: CountedBackend, host: memoryview, stream: object
) -> "Stage | None":
    """Return two blocks for a copy to or from ``host``, if it should not go directly.

    It goes directly when it is small, when the backend says so, or when there is no
    pinned memory left.
    """
    find = getattr(backend.inner, "staging", None)
    if host.nbytes < SMALLEST_NBYTES or find is None or not _makers:
        return None
    wanted: Staging | None = find(host, stream)
    if wanted is None:
        return None
    try:
        return Stage(wanted)
    except OutOfMemoryError:
        return None


class Stage:
    """Two pinned blocks, which go back to their pool at the end of a ``with`` block.

    Then the device is done with them, also when the copy has failed.
    """

    def __init__(self, wanted: Staging) -> None:
        self._wanted = wanted
        with contextlib.ExitStack() as held:
            self._views = [view(held.enter_context(_block(wanted))) for _ in range(2)]
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._held:
            self._views.clear()  # last views keep their blocks
            try:
                self._wanted.finish()
            except BackendError:  # it does nothing any more: the blocks are free
                if error is None:
                    raise

    def write(self, to: Part, of: memoryview) -> None:
        """Copy host memory to a part of the device as long as it."""
        events: deque[object] = deque()
        for block, start, stop in self._turns(of.nbytes):
            if len(events) == len(self._views):
                to.backend.synchronize(events.popleft())
            _copy(block, of[start:stop])
            to.backend.copy_from_host(
                to.reservation, to.offset + start, block, stream=self._wanted.stream
            )
            events.append(to.backend.record(self._wanted.stream))

    def read(self, to: memoryview, of: Part) -> None:
        """Copy a part of the device to host memory as long as it."""
        queued: deque[tuple[object, memoryview, memoryview]] = deque()
        for block, start, stop in self._turns(of.nbytes):
            if len(queued) == len(self._views):
                _empty(of.backend, *queued.popleft())
            of.backend.copy_to_host(
                of.reservation, of.offset + start, block, stream=self._wanted.stream
            )
            event = of.backend.record(self._wanted.stream)
            queued.append((event, block, to[start:stop]))
        while queued:
            _empty(of.backend, *queued.popleft())

    def _turns(self, nbytes: int) -> Iterator[tuple[memoryview, int, int]]:
        """Yield each piece of a copy, after the place for it in a block."""
        for number, start in enumerate(range(0, nbytes, PIECE_NBYTES)):
            stop = min(start + PIECE_NBYTES, nbytes)
            yield self._views[number % len(self._views)][: stop - start], start, stop


def _empty(
    backend: CountedBackend, event: object, block: memoryview, to: memoryview
) -> None:
    backend.synchronize(event)
    _copy(to, block)


def _copy(to: memoryview, of: memoryview) -> None:
    import numpy as np

    # NumPy's copy, other than a memoryview's, lets the other threads run meanwhile.
    np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(of, np.uint8))


def _block(wanted: Staging) -> Memory:
    pool = _pools.get(wanted.device)
    if pool is None:
        # Two threads may make one each: the one that is not kept holds nothing.
        pool = _pools.setdefault(wanted.device, _makers[0](wanted.device))
    # In a context without tags: no tag's limit is meant for it.
    block: Memory = contextvars.Context().run(pool.allocate, PIECE_NBYTES)
    return block
