"""Write down every allocation and free: ``with madl.record("run.trace.gz"):``."""

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator

from madl import events, hotpath
from madl.diagnostics.trace_writer import TraceWriter

_QUEUE_LENGTH = 4096


class Recorder:
    """A listener that writes a trace.

    Events are appended to a queue, which is atomic and so safe in finalizers and
    signal handlers; whoever finds the queue long and the writer idle writes them out.
    When that fails, the program goes on without a trace, and ``finish`` says why.
    """

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._queue: deque[tuple[int, int, str | None]] = deque()
        self._ids = itertools.count()
        self._writing = threading.Lock()
        # Threads may queue their allocations in another order than they drew ids.
        self._written_as: dict[int, int] = {}
        self._error: Exception | None = None
        _recorders.add(self)

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
        """Write that an iteration or a phase starts, after all that happened so far.

        Raises:
            ValueError: ``label`` is not on one line, or the recording has ended.
        """
        with self._writing:
            self._drain()
            self._writer.mark(label)

    def write(self) -> None:
        """Write what is queued, unless somebody is writing already."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            self._drain()
        finally:
            self._writing.release()

    def finish(self) -> None:
        """Write what is queued and close the trace; what comes later is not heard.

        Raises:
            OSError, ValueError: Why it could not be written, now or earlier.
        """
        with self._writing:
            self._drain()
            self._stop()
            if self._error is not None:
                raise self._error
            self._writer.close()

    def abandon(self) -> None:
        """Hear nothing any more: the trace belongs to the process that forked."""
        self._writing = threading.Lock()
        self._stop()
        self._writer.abandon()

    def _stop(self) -> None:
        self._queue = deque(maxlen=0)

    def _drain(self) -> None:
        try:
            while self._queue:
                self._write_event(*self._queue.popleft())
        except Exception as error:  # must not reach whoever allocates; finish raises it
            self._error = error
            self._writer.discard()
            self._stop()

    def _write_event(self, allocation_id: int, nbytes: int, tag: str | None) -> None:
        if nbytes < 0:
            self._writer.free(self._written_as.pop(allocation_id))
        else:
            self._written_as[allocation_id] = self._writer.allocate(nbytes, tag=tag)


_recorders: "weakref.WeakSet[Recorder]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for recorder in list(_recorders):
        recorder.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


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

    Raises:
        ValueError: ``path`` is a directory or a device.
        OSError: The trace cannot be written: at the start, or else at the end.

    What was allocated before is not in the trace, nor is its free. A forked child is
    not recorded. Allocations cost more while any recording is active.
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
        recorder.finish()
