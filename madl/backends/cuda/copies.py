"""CUDA copies and fills, queued in streams; peer copies and staged copies.

Work without a stream is queued in the legacy default stream, as the CUDA runtime does
it, and waited for: by themselves some of the driver's copies return early.
"""

import contextlib
from abc import abstractmethod
from typing import Any, cast

from madl.backends.cuda.calls import SUCCESS
from madl.backends.cuda.streams import CudaStreams, any_handle_of, handle_of
from madl.backends.protocol import Backend, Capability, Reservation, Staging

WORK = (
    Capability.COPY
    | Capability.PEER_COPY
    | Capability.STAGED_COPY
    | Capability.FILL
    | Capability.STREAM_ORDERED
    | Capability.CAPTURE
)
"""What ``CudaWork`` has the methods for."""

_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_BY_THE_CPU = Capability.PINNED | Capability.MANAGED
_ANY = "cuMemcpyAsync"
"""The copy that finds out by the addresses whose memory each side is. The others are
for device memory on one side, which pinned memory is not."""


class CudaWork(CudaStreams):
    """The part of a CUDA backend that queues work."""

    _is_host: bool
    """Whether the memory is the host's."""
    capabilities: Capability

    @abstractmethod
    def _at(self, reservation: Reservation, offset: int, nbytes: int) -> int:
        """Return the address of a range of a reservation."""

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy all of ``source`` to ``offset``."""
        nbytes = source.nbytes
        at = self._at(reservation, offset, nbytes)
        if self._is_host and nbytes:
            self._queue(_ANY, at, _address_of(source), nbytes, stream=stream)
        else:
            self._queue("cuMemcpyHtoDAsync", at, source, nbytes, stream=stream)

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy from ``offset`` into all of ``destination``."""
        if destination.readonly:
            raise ValueError("destination must be writable, got a read-only buffer")
        nbytes = destination.nbytes
        at = self._at(reservation, offset, nbytes)
        if self._is_host and nbytes:
            self._queue(_ANY, _address_of(destination), at, nbytes, stream=stream)
        else:
            self._queue("cuMemcpyDtoHAsync", destination, at, nbytes, stream=stream)

    def copy_inside(
        self,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        """Copy inside the device."""
        of = self._at(source, source_offset, nbytes)
        to = self._at(destination, destination_offset, nbytes)
        self._queue(_ANY, to, of, nbytes, stream=stream)

    def copy_from_device(
        self,
        backend: Backend,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        """Copy from another CUDA backend, by a stream of this one.

        It goes from device to device where these can reach each other, else the
        driver takes it through host memory.

        Managed memory and pinned memory, which is pinned for all devices, have
        addresses that any device can use.
        """
        there = cast("CudaWork", backend)
        of = there._at(source, source_offset, nbytes)
        to = self._at(destination, destination_offset, nbytes)
        reached = (self.capabilities | there.capabilities) & _BY_THE_CPU
        if reached or self.shares_streams(backend):
            self._queue(_ANY, to, of, nbytes, stream=stream)
            return
        contexts = (self._device.context, there._device.context)
        self._queue(
            "cuMemcpyPeerAsync", to, contexts[0], of, contexts[1], nbytes, stream=stream
        )

    def reaches(self, backend: object) -> bool:
        """Return whether another backend is of CUDA."""
        return isinstance(backend, CudaWork)

    def shares_streams(self, backend: object) -> bool:
        """Return whether a stream of this backend's runs on another one too."""
        return (
            isinstance(backend, CudaWork)
            and backend._device.index == self._device.index
        )

    def staging(self, host: memoryview, stream: object) -> Staging | None:
        """Return how a large copy to or from ``host`` is done best, if not directly.

        Directly go those of memory that the CPU reaches as well, those that a graph
        captures, for later, and those of host memory that the driver knows: it is
        pinned.
        """
        if self.capabilities & _BY_THE_CPU:
            return None
        handle = handle_of(stream)
        if self._knows(_address_of(host)) or self.is_capturing(handle):
            return None
        return Staging(
            f"cuda_pinned:{self._device.index}",
            handle,
            lambda: self._finish(handle),
        )

    def _knows(self, address: int) -> bool:
        """Return whether the driver knows host memory: pinned, or managed."""
        calls = self._device.calls
        name = calls.driver.CUpointer_attribute(_MEMORY_TYPE)
        with self._device.current():
            status, kind = calls.status("cuPointerGetAttribute", name, address)
        return status == SUCCESS and bool(int(kind))

    def _finish(self, handle: int) -> None:
        with self._device.current():
            self._device.calls.call("finish a copy", "cuStreamSynchronize", handle)

    def finish(self, stream: object) -> None:
        """Return when the device has done all its work, and a stream its own.

        For a stream that no event can be had of: the per-thread default one, one of
        another context, or one that is gone.

        Raises:
            BackendCallError: The device cannot be waited for: the context is broken,
                or work is captured for later.
        """
        calls = self._device.calls
        with self._device.taking():
            calls.call("wait for the device", "cuCtxSynchronize")
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            handle = any_handle_of(stream)
            status, context = calls.status("cuStreamGetCtx", handle)
            if status == SUCCESS and int(context) != int(self._device.context):
                calls.quietly("cuCtxPushCurrent", context)
                calls.quietly("cuStreamSynchronize", handle)
                calls.quietly("cuCtxPopCurrent")

    def fill(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
        *,
        stream: object = None,
    ) -> None:
        """Set every byte of a range."""
        if not 0 <= value <= 255:
            raise ValueError(f"value must be a byte, 0 to 255, got {value}")
        at = self._at(reservation, offset, nbytes)
        self._queue("cuMemsetD8Async", at, value, nbytes, stream=stream)

    def _queue(self, function: str, *arguments: Any, stream: object) -> None:  # noqa: ANN401  # the driver's own
        nbytes = arguments[-1]
        if nbytes == 0:
            return
        handle = handle_of(stream)
        action = f"{'fill' if 'set' in function else 'copy'} {nbytes} bytes"
        calls = self._device.calls
        with self._device.current():
            calls.call(action, function, *arguments, handle)
            if stream is None:
                calls.call(action, "cuStreamSynchronize", handle)


def _address_of(buffer: memoryview) -> int:
    """Return where a buffer that is not empty lies, be it read-only or not."""
    import numpy as np  # it is loaded when it is needed

    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address
