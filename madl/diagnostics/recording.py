"""Record allocations and frees as a trace: ``with madl.record("run.trace.gz"):``."""

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from madl.diagnostics.traces.journal import Journal, JournalWriter
from madl.diagnostics.traces.reader import open_trace
from madl.diagnostics.traces.text import check_depth
from madl.diagnostics.traces.writer import file_behind, one_line, write_trace
from madl.errors import FileFormatError
from madl.hotpath.reentrancy import living, try_lock
from madl.pool.tracking import Wish, wanted
from madl.stacks import Stack


class Recorder:
    """A recording: a journal while it lasts, a trace in the end.

    Where the hot path is compiled, pools write to the journal by themselves. Else, and
    for stacks, the recorder is a listener. Its queue is a deque, to which finalizers
    and signal handlers can add without a lock; the thread that gets the lock drains it.
    When writing fails, the program goes on without a trace, and ``finish`` says why.
    """

    def __init__(self, path: Path, *, name: str, depth: int) -> None:
        self.path = path
        self.is_listener = depth > 0 or not Journal.hears_pools
        self._journal = JournalWriter(path, {"name": name})
        self._depth = depth
        self._queue: deque[tuple[int, int, int, str | None, Stack]] = deque()
        self._keys = itertools.count()
        self._writing = threading.Lock()
        self._has_ended = False
        _recorders.add(self)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of what is allocated inside the block."""
        if self.is_listener:
            with wanted(Wish(lines=self._depth, listener=self)):
                yield
            return
        journal = self._journal.journal
        try:
            journal.listen(self._journal.define_tag)
            yield
        finally:
            journal.stop_listening()

    def allocated(
        self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
    ) -> int:
        """Write an allocation."""
        key = next(self._keys)
        self._queue.append((key, nbytes, stream_number, tag, stack[: self._depth]))
        self._write()
        return key

    def freed(self, allocation_id: int) -> None:
        """Write a free."""
        self._queue.append((allocation_id, -1, 0, None, ()))
        self._write()

    def mark(self, label: str) -> None:
        """Write that an iteration or a phase starts, after all that happened so far.

        Raises:
            ValueError: ``label`` is not on one line, or the recording has ended.
        """
        one_line("label", label)
        with self._writing:
            if self._has_ended:
                raise ValueError(f"the recording of {str(self.path)!r} has ended")
            self._drain()
            self._journal.mark(label)

    def finish(self) -> None:
        """Make a trace of the journal, and remove that; again, it does nothing.

        Raises:
            OSError: The disk was full, now or earlier. The journal stays.
            FileFormatError: So much was recorded that no trace can hold it. As well.
        """
        with self._writing:
            if self._has_ended:
                return
            self._drain()
            self._end()
            error = self._journal.error
            self._journal.close()
            try:
                if error is not None:
                    raise error
                write_trace(open_trace(self._journal.path), self.path)
            except (OSError, FileFormatError) as failure:
                failure.add_note(
                    f"What was recorded until then is in {str(self._journal.path)!r}, "
                    "which `madl replay` reads."
                )
                raise
            # Only now: a crash before this line leaves the journal, or both.
            self._journal.remove()

    def abandon(self) -> None:
        """Leave the recording to the parent, in a forked child."""
        self._writing = threading.Lock()
        if not self._has_ended:
            self._end()
            self._journal.abandon()

    def _end(self) -> None:
        self._has_ended = True
        self._queue = deque(maxlen=0)

    def _write(self) -> None:
        """Drain the queue, unless the lock is taken.

        A finalizer or a signal handler may interrupt this thread while it holds the
        lock: to wait would deadlock. What it queues is drained by the owner, or else
        with the next event or at the end.
        """
        try_lock(self._writing, self._drain, otherwise=None)

    def _drain(self) -> None:
        while self._queue:
            key, nbytes, stream_number, tag, stack = self._queue.popleft()
            if nbytes < 0:
                self._journal.free(key)
            else:
                self._journal.allocate(key, nbytes, stream_number, tag, stack)


_recorders: "weakref.WeakSet[Recorder]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for recorder in living(_recorders):
        recorder.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str], *, name: str = "recorded", stacks: int = 0
) -> Iterator[Recorder]:
    """Record the allocations of all pools and threads until the block ends.

    Args:
        path: Where the trace will be: gzipped ``madl-trace v1``. An existing file is
            replaced when the block ends, also by an exception. Until then there is a
            journal beside it, of 16 bytes an event, named ``path`` with ``.journal``;
            it stays when the process is killed, and ``madl replay`` reads it.
        name: The trace's name.
        stacks: How many lines to note of the way to each allocation, which then costs
            a few microseconds more.

    Yields:
        The recorder; ``mark(label)`` notes that an iteration or a phase starts.

    Raises:
        ValueError: ``path`` is a directory, a pipe or a device, or ``stacks`` is out of
            range.
        FileExistsError: The journal is there already.
        OSError: The trace cannot be written: at the start, or else at the end.

    What was allocated before is not in the trace, nor is its free. A forked child is
    not recorded.
    """
    target = file_behind(path)
    if target is None:
        raise ValueError(f"path must name a file, got {os.fspath(path)!r}")
    one_line("name", name)
    recorder = Recorder(target, name=name, depth=check_depth(stacks))
    try:
        with recorder.listening():
            yield recorder
    finally:
        recorder.finish()
