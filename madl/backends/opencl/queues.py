"""OpenCL command queues as streams, markers as events, and copies in flight."""

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from madl.backends.opencl.calls import OpenclCalls, check_process
from madl.backends.opencl.devices import Target, check_order
from madl.backends.opencl.errors import translated

if TYPE_CHECKING:
    import pyopencl as cl

_Kept = tuple["cl.Event", memoryview]

_LOOKED_AT = 2  # copies in flight that each new one polls, so that they are dropped


class OpenclQueues:
    """The part of an OpenCL backend that records, waits and keeps host memory.

    Args:
        calls: How pyopencl is called.
        device: Its name, for errors.
        target: Context and device, and the queue for work without a stream.
    """

    def __init__(self, calls: OpenclCalls, device: str, target: Target) -> None:
        self._calls = calls
        self.device = device
        self.context = target.context
        self._device = target.device
        # Never behind the user's work, so that waiting for it cannot deadlock.
        with translated(device, "make a command queue"):
            self._private = calls.create_queue(target.context, target.device)
        self.queue: cl.CommandQueue = target.queue or self._private
        """The queue of work without a stream."""
        self._used: dict[int, cl.CommandQueue] = {}
        self._in_flight = CopiesInFlight(calls)

    def stream_key(self, stream: Any) -> int:  # noqa: ANN401  # anything a user passes
        """Return what OpenCL calls a command queue; None is the default one.

        Raises:
            TypeError: It is none.
            ValueError: It is of another device or context, or keeps no order.
        """
        import pyopencl as cl

        stream = self.queue if stream is None else stream
        if not isinstance(stream, cl.CommandQueue):
            raise TypeError(
                f"a stream of {self.device} is a pyopencl.CommandQueue, got {stream!r} "
                f"({type(stream).__name__})"
            )
        if stream.context != self.context:
            raise ValueError(
                f"the CommandQueue is of another context than {self.device} in this "
                "pool; make the pool from the queue: Pool(OpenclBackend(queue))"
            )
        if stream.device != self._device:
            raise ValueError(
                f"the CommandQueue is of device {stream.device.name!r}, the pool of "
                f"{self._device.name!r}"
            )
        check_order(stream)
        number: int = stream.int_ptr
        self._used[number] = stream
        return number

    def record(self, stream: object) -> "cl.Event":
        """Return a marker behind what is queued, which is handed to the device."""
        queue = self._queue_of(stream)
        with translated(self.device, "record an event"):
            event = self._calls.mark(queue)
            # Unflushed it might never start, and a queue that waits for it deadlock.
            self._calls.flush(queue)
        return event

    def is_done(self, event: Any) -> bool:  # noqa: ANN401  # an event of pyopencl
        """Return whether all before a marker is done; failed work is, too."""
        check_process(self.device)
        with translated(self.device, "query an event"):
            return self._calls.status(event) <= 0

    def wait(self, stream: object, event: Any) -> None:  # noqa: ANN401  # an event of pyopencl
        """Queue a barrier that waits for a marker, of any queue of the context."""
        queue = self._queue_of(stream)
        with translated(self.device, "wait for an event"):
            self._calls.hold_back(queue, event)

    def synchronize(self, event: Any) -> None:  # noqa: ANN401  # an event of pyopencl
        """Return when all before a marker is done."""
        check_process(self.device)
        with translated(self.device, "synchronize with an event"):
            self._calls.wait(event)

    def _queue_of(self, stream: object) -> "cl.CommandQueue":
        """Return the queue of a stream, or the default one for None."""
        check_process(self.device)
        if stream is None:
            return self.queue
        self.stream_key(stream)
        return stream

    def _finish(self) -> None:
        """Return when all that is queued by now, in every queue seen, is done."""
        for queue in [self.queue, *list(self._used.values())]:
            self.synchronize(self.record(queue))


class CopiesInFlight:
    """Keeps the events and the host memory of copies until these are done.

    pyopencl's event of a copy from or to a buffer waits for the copy when it is
    dropped, as it keeps the host memory, and holds the interpreter lock while it waits.
    So an event is dropped only when it is done.
    """

    def __init__(self, calls: OpenclCalls) -> None:
        self._calls = calls
        self._kept: deque[_Kept] = deque()

    def keep(self, event: "cl.Event", host: memoryview) -> _Kept:
        """Keep those of one copy."""
        kept = event, host
        self._kept.append(kept)
        return kept

    def let_go(self, kept: _Kept) -> None:
        """Keep those of a copy no more, which is done."""
        with contextlib.suppress(ValueError):  # another thread has seen that it is
            self._kept.remove(kept)

    def look(self) -> None:
        """Let go of those of the oldest copies, if they are done."""
        for _ in range(_LOOKED_AT):
            try:
                oldest = self._kept.popleft()
            except IndexError:  # another thread has looked at it
                return
            if self._calls.status(oldest[0]) > 0:
                self._kept.append(oldest)

    def __len__(self) -> int:
        """How many copies are kept."""
        return len(self._kept)

    def __del__(self) -> None:
        # The wait releases the interpreter lock, that of a dropped event does not: the
        # copy may be behind work that a thread of Python has to release.
        for event, _ in self._kept:
            with contextlib.suppress(self._calls.Error):
                self._calls.wait(event)
