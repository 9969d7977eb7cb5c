"""Write down every allocation and free: ``with madl.record("run.trace.gz"):``."""

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator

from madl import events, hotpath
from madl.diagnostics.trace_writer import TraceWriter

_QUEUE_LENGTH = 4096


class Recorder:
    """A listener that writes a trace.

    Events are appended to a queue, which is atomic and so safe in finalizers and
    signal handlers; whoever finds the queue long and the writer idle writes them out.
    """

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._queue: deque[tuple[int, int, str | None]] = deque()
        self._ids = itertools.count()
        self._writing = threading.Lock()
        # Threads may queue their allocations in another order than they drew ids.
        self._written_as: dict[int, int] = {}

    def allocated(self, nbytes: int, tag: str | None) -> int:
        """Queue an allocation."""
        allocation_id = next(self._ids)
        self._queue.append((allocation_id, nbytes, tag))
        if len(self._queue) > _QUEUE_LENGTH:
            self.write()
        return allocation_id

    def freed(self, allocation_id: int) -> None:
        """Queue a free."""
        self._queue.append((allocation_id, -1, None))

    def mark(self, label: str) -> None:
        """Write a marker after all that happened so far."""
        self.write()
        self._writer.mark(label)

    def write(self) -> None:
        """Write what is queued, unless somebody is writing already."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            while self._queue:
                allocation_id, nbytes, tag = self._queue.popleft()
                if nbytes < 0:
                    self._writer.free(self._written_as.pop(allocation_id))
                else:
                    self._written_as[allocation_id] = self._writer.allocate(
                        nbytes, tag=tag
                    )
        finally:
            self._writing.release()


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str], *, name: str = "recorded"
) -> Iterator[Recorder]:
    """Record the allocations of all pools and threads until the block ends.

    Args:
        path: Where the trace will be: gzipped ``madl-trace v1``. An existing file is
            replaced when the block ends, whatever ends it.
        name: The trace's name.

    Yields:
        The recorder; ``mark(label)`` notes that an iteration or a phase starts.

    What was allocated before is not in the trace, nor is its free. Allocations cost
    more while any recording is active.
    """
    writer = TraceWriter(path, {"name": name})
    recorder = Recorder(writer)
    events.listeners.append(recorder)
    hotpath.change_watch_count(+1)
    try:
        yield recorder
    finally:
        hotpath.change_watch_count(-1)
        events.listeners.remove(recorder)
        recorder.write()
        writer.close()
