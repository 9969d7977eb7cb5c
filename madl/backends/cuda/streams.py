"""CUDA streams of any library, and events: record, query, wait, synchronize."""

from collections.abc import Hashable
from typing import Any

from madl.backends.cuda.calls import CAPTURED, IMPLICIT, NOT_READY, SUCCESS
from madl.backends.cuda.device import CudaDevice

_LEGACY, _PER_THREAD = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING: without it a record costs more
_MAKERS = (
    "an int handle or a stream of cuda.core, cuda.bindings, CuPy, PyTorch or Numba"
)


def handle_of(stream: object) -> int:
    """Return the driver's handle of a stream; None, 0 and 1 are the legacy default.

    Raises:
        TypeError: It is nothing that is known to be a stream.
        ValueError: It is the per-thread default stream.
    """
    handle = any_handle_of(stream)
    if handle == _PER_THREAD:
        raise ValueError(
            "the per-thread default stream is another one in each thread, and memory "
            "may be freed in any; make a stream and use that one"
        )
    return handle


def any_handle_of(stream: object) -> int:
    """Return as ``handle_of``, but take the per-thread default stream too.

    Raises:
        TypeError: It is nothing that is known to be a stream.
    """
    handle = 0 if stream is None else _find_handle(stream)
    if handle is None or handle < 0:
        raise TypeError(
            f"stream must be {_MAKERS}, got {stream!r} ({type(stream).__name__})"
        )
    return handle or _LEGACY


def _find_handle(stream: object) -> int | None:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:  # a method that returns (version, handle), or the pair
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):  # of PyTorch, CuPy, Numba
        found = getattr(stream, name, None)
        if found is not None:
            return _as_int(found)
    return _as_int(stream) if hasattr(stream, "getPtr") else None  # a CUstream


def _as_int(handle: Any) -> int | None:  # noqa: ANN401  # an int, or a box around one
    handle = getattr(handle, "value", handle)  # of ctypes, where 0 is None
    if handle is None:
        return 0
    return int(handle) if hasattr(handle, "__int__") else None


class CudaEvent:
    """A position in a stream. Dropped, it is used again for another one."""

    __slots__ = ("_spare", "handle")

    def __init__(self, handle: object, spare: list[object]) -> None:
        self.handle = handle
        self._spare = spare

    def __del__(self) -> None:
        # A finalizer may run in the middle of a driver call of this thread, so it makes
        # none. A wait for the event is the driver's by now, and needs no handle.
        self._spare.append(self.handle)


def _of(event: object) -> object:
    if not isinstance(event, CudaEvent):
        raise TypeError(f"event must be of record(), got {event!r}")
    return event.handle


class CudaStreams:
    """The part of a CUDA backend that records, queries and waits for events."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._calls = device.calls
        self._spare: list[object] = []

    def stream_key(self, stream: object) -> Hashable:
        """Return what is equal for two objects that mean one stream.

        Raises:
            TypeError: It is no stream.
            ValueError: It belongs to another device, or another context of this one.
        """
        handle = handle_of(stream)
        with self._device.current():
            found = self._calls.call("look at a stream", "cuStreamGetCtx", handle)
        if int(found) != int(self._device.context):
            raise ValueError(
                f"stream {stream!r} does not belong to the primary context of "
                f"{self._calls.device}; pass one that was made on that device"
            )
        return handle

    def is_capturing(self, stream: object) -> bool:
        """Return whether work queued on a stream goes into a graph, for later.

        Or whether it would break a capture: the legacy default stream waits for all
        that do not say otherwise, so none of its work may be queued while one of these
        is captured.
        """
        function = "cuStreamIsCapturing"
        with self._device.current():
            status, found = self._calls.status(function, handle_of(stream))
        if status == IMPLICIT:
            return True
        if status != SUCCESS:
            raise self._calls.failed(
                "look at a stream", self._calls.failure(function, status)
            )
        return int(found) != 0

    def record(self, stream: object) -> CudaEvent:
        """Return an event at the end of what is queued on a stream."""
        handle = handle_of(stream)
        with self._device.current():
            event = self._new_event()
            self._calls.call("record an event", "cuEventRecord", event.handle, handle)
        return event

    def _new_event(self) -> CudaEvent:
        try:
            handle = self._spare.pop()
        except IndexError:
            handle = self._calls.call("make an event", "cuEventCreate", NO_TIMING)
        return CudaEvent(handle, self._spare)

    def is_done(self, event: object) -> bool:
        """Return whether an event has been reached, without waiting."""
        # Not current(): a query would invalidate captures of other threads.
        with self._device.taking():
            status, _ = self._calls.status("cuEventQuery", _of(event))
        if status in (SUCCESS, NOT_READY, CAPTURED):
            return status == SUCCESS
        failure = self._calls.failure("cuEventQuery", status)
        raise self._calls.failed("ask for an event", failure)

    def wait(self, stream: object, event: object) -> None:
        """Let what is queued on a stream from now on wait for an event."""
        handle = handle_of(stream)
        with self._device.current():
            self._calls.call(
                "wait for an event", "cuStreamWaitEvent", handle, _of(event), 0
            )

    def synchronize(self, event: object) -> None:
        """Return when an event has been reached."""
        with self._device.current():
            self._calls.call("wait for an event", "cuEventSynchronize", _of(event))
