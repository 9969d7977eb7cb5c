"""OpenCL shared virtual memory (SVM): one address for host and device.

*Fine-grained* memory the CPU reads and writes at any time that no kernel does.
*Coarse-grained* memory it may touch only between a map and an unmap, which are work in
a queue: to a pool it is like a buffer that has an address, and bytes are copied.
"""

import ctypes
import sys
from typing import TYPE_CHECKING

import numpy as np

from madl.backends.opencl.buffers import fill_parts
from madl.backends.opencl.calls import OpenclCalls
from madl.backends.protocol import Capability, Reservation

if TYPE_CHECKING:
    import pyopencl as cl

ALIGNMENT_NBYTES = 512
"""Of the start of a reservation, as pools need it. Drivers promise 128 or less, so as
much more is taken."""

_BYTES = ctypes.c_ubyte * sys.maxsize  # one type for all sizes: ctypes keeps each


class ManagedMemory:
    """Shared virtual memory of one context.

    Args:
        calls: How pyopencl is called.
        context: Whose memory it is.
        fine: Fine-grained, or coarse-grained.
    """

    alignment = ALIGNMENT_NBYTES

    def __init__(
        self, calls: OpenclCalls, context: "cl.Context", *, fine: bool
    ) -> None:
        self._calls = calls
        self._context = context
        self._fine = fine
        self.capabilities = Capability.VIEW | Capability.MANAGED
        if fine:
            self.capabilities |= Capability.HOST_ACCESS

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory; drivers do it when they are asked."""
        taken = self._calls.create_managed(
            self._context, nbytes + ALIGNMENT_NBYTES, fine=self._fine
        )
        address = -(-taken.svm_ptr // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        return Reservation(taken, nbytes, address)

    def release(self, native: "cl.SVMAllocation") -> None:
        """Give memory back; the driver does not wait for queued work."""
        self._calls.release(native)

    def copy_from_host(
        self,
        queue: "cl.CommandQueue",
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        is_blocking: bool,
    ) -> "cl.Event":
        """Queue a copy to the device; the caller keeps ``source``."""
        to = self._part(reservation, offset, source.nbytes)
        return self._calls.copy(queue, to, self._host(source), is_blocking=is_blocking)

    def copy_to_host(
        self,
        queue: "cl.CommandQueue",
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        is_blocking: bool,
    ) -> "cl.Event":
        """Queue a copy from the device; the caller keeps ``destination``."""
        of = self._part(reservation, offset, destination.nbytes)
        return self._calls.copy(
            queue, self._host(destination), of, is_blocking=is_blocking
        )

    def copy_inside(
        self,
        queue: "cl.CommandQueue",
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
    ) -> "cl.Event":
        """Queue a copy inside the device."""
        of = self._part(source, source_offset, nbytes)
        to = self._part(destination, destination_offset, nbytes)
        return self._calls.copy(queue, to, of, is_blocking=False)

    def fill(
        self,
        queue: "cl.CommandQueue",
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
    ) -> "cl.Event":
        """Queue a fill; the event is that of its last part."""
        event = None
        for start, stop, width in fill_parts(offset, nbytes):
            part = self._part(reservation, start, stop - start)
            pattern = bytes([value]) * width
            event = self._calls.fill_managed(queue, part, pattern, stop - start)
        return event

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return what kernels of pyopencl take for managed memory."""
        return self._part(reservation, offset, nbytes)

    def _part(self, reservation: Reservation, offset: int, nbytes: int) -> "cl.SVM":
        assert reservation.address is not None, "managed memory has an address"
        return self._at(reservation.address + offset, nbytes)

    def _host(self, buffer: memoryview) -> "cl.SVM":
        """Return host memory as such a part; pyopencl takes no read-only buffer."""
        array = np.frombuffer(buffer, np.uint8)
        return self._at(array.ctypes.data, array.nbytes)

    def _at(self, address: int, nbytes: int) -> "cl.SVM":
        everything = memoryview(_BYTES.from_address(address))
        return self._calls.managed_part(everything[:nbytes].cast("B"))
