"""A CUDA device: its primary context, made current for the length of a call."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from madl.backends.cuda.calls import CudaCalls, version_text
from madl.backends.protocol import MemoryInfo
from madl.sizes import format_nbytes

# The numbers are of the driver's interface and never change.
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76
MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS = 83, 89
VIRTUAL_MEMORY, MEMORY_POOLS = 102, 115

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

_contexts: dict[int, Any] = {}
_streams: dict[int, Any] = {}
_lock = threading.RLock()  # re-entrant: a signal handler may open a device too


class CudaDevice:
    """One device of this process, with its primary context.

    The context is the one that the CUDA runtime, and so PyTorch, CuPy and Numba, use
    as well. It is retained when it is first needed and kept: making one takes time,
    and hundreds of megabytes, which listing devices should not.

    Args:
        device: Its name, for errors.
        index: Its number.
    """

    def __init__(self, device: str, index: int) -> None:
        self.index = index
        self.calls = CudaCalls(device, index)
        self.native = self.calls.call("open it", "cuDeviceGet", index)

    def attribute(self, number: int) -> int:
        """Return an attribute of the device."""
        attribute = self.calls.driver.CUdevice_attribute(number)
        asked = "cuDeviceGetAttribute", attribute, self.native
        return int(self.calls.call("ask for an attribute", *asked))

    @property
    def context(self) -> Any:  # noqa: ANN401  # a CUcontext of cuda-python
        """The primary context."""
        found = _contexts.get(self.index)
        if found is None:
            # Before the lock: in a forked child a thread of the parent may hold it.
            self.calls.check_process()
            with _lock:
                found = _contexts.get(self.index)
                if found is None:
                    found = _contexts[self.index] = self.calls.call(
                        "make its context", "cuDevicePrimaryCtxRetain", self.native
                    )
        return found

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Have the context current in this thread, and then the one of before."""
        calls, context = self.calls, self.context
        found = calls.call("ask for the context", "cuCtxGetCurrent")
        if int(found) == int(context):
            yield
            return
        calls.call("enter its context", "cuCtxPushCurrent", context)
        try:
            yield
        finally:
            # Never raise: the work has been done, or its own error is in flight.
            calls.quietly("cuCtxPopCurrent")

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """As ``current``, for calls that take memory or give it back.

        While any thread captures a graph, such calls would break the capture; in the
        relaxed mode they do not, and they are not part of the graph.
        """
        with self.current():
            mode = self.calls.driver.CUstreamCaptureMode(_RELAXED)
            exchange = "cuThreadExchangeStreamCaptureMode"
            before = self.calls.call("leave captures alone", exchange, mode)
            try:
                yield
            finally:
                self.calls.quietly(exchange, before)

    def own_stream(self) -> Any:  # noqa: ANN401  # a CUstream of cuda-python
        """Return the stream of madl itself; the context is current."""
        with _lock:
            if self.index not in _streams:
                _streams[self.index] = self.calls.call(
                    "make a stream", "cuStreamCreate", _NON_BLOCKING
                )
            return _streams[self.index]

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory."""
        with self.current():
            unused, total = self.calls.call("ask for its memory", "cuMemGetInfo")
        return MemoryInfo(int(total), int(unused))

    def describe(self) -> dict[str, str]:
        """Return what the device is."""
        name = self.calls.call("ask for its name", "cuDeviceGetName", 256, self.native)
        version = self.calls.call("ask for the version", "cuDriverGetVersion")
        total = self.calls.call("ask for its memory", "cuDeviceTotalMem", self.native)
        major, minor = map(self.attribute, (_COMPUTE_MAJOR, _COMPUTE_MINOR))
        return {
            "name": name.decode(errors="replace").strip("\0 "),
            "device memory": format_nbytes(int(total)),
            "compute capability": f"{major}.{minor}",
            "driver": f"for CUDA {version_text(version)}",
        }
