"""OpenCL shared virtual memory (SVM): one address for host and device.

*Fine-grained* memory the CPU reads and writes at any time that no kernel does.
*Coarse-grained* memory it may touch only between a map and an unmap, which are work in
a queue: to a pool it is like a buffer that has an address, and bytes are copied.
"""

import ctypes
import sys
from typing import TYPE_CHECKING

import numpy as np

from madl.backends.opencl.buffers import ALIGNMENT_NBYTES, Part, Side
from madl.backends.opencl.calls import OpenclCalls
from madl.backends.protocol import Capability, Reservation

if TYPE_CHECKING:
    import pyopencl as cl

_BYTES = ctypes.c_ubyte * sys.maxsize  # one type for all sizes: ctypes keeps each


class ManagedMemory:
    """Shared virtual memory of one context.

    Args:
        calls: How pyopencl is called.
        context: Whose memory it is.
        fine: Fine-grained, or coarse-grained.
    """

    alignment = spare_nbytes = ALIGNMENT_NBYTES

    def __init__(
        self, calls: OpenclCalls, context: "cl.Context", *, fine: bool
    ) -> None:
        import pyopencl as cl

        self._calls = calls
        self._context = context
        self._flags = cl.svm_mem_flags.READ_WRITE
        self.capabilities = Capability.VIEW | Capability.MANAGED
        if fine:
            self._flags |= cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
            self.capabilities |= Capability.HOST_ACCESS

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory; drivers do it when they are asked."""
        taken = self._calls.create_managed(
            self._context, nbytes + self.spare_nbytes, 0, self._flags
        )
        address = -(-taken.svm_ptr // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        return Reservation(taken, nbytes, address)

    def release(self, native: "cl.SVMAllocation") -> None:
        """Give memory back; the driver does not wait for queued work."""
        self._calls.release(native)

    def copy(
        self,
        queue: "cl.CommandQueue",
        to: Side,
        of: Side,
        nbytes: int,
        *,
        is_blocking: bool,
    ) -> "cl.Event":
        """Queue a copy; the caller keeps host memory, if one side is that."""
        ends = [self._side(side, nbytes) for side in (to, of)]
        return self._calls.copy(queue, *ends, is_blocking=is_blocking)

    def fill(
        self, queue: "cl.CommandQueue", part: Part, nbytes: int, pattern: bytes
    ) -> "cl.Event":
        """Queue the filling of a part with a pattern."""
        return self._calls.fill_managed(
            queue, self._side(part, nbytes), pattern, nbytes
        )

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return what kernels of pyopencl take for managed memory."""
        return self._side(Part(reservation, offset), nbytes)

    def _side(self, side: Side, nbytes: int) -> "cl.SVM":
        """Return managed or host memory as such a part."""
        if isinstance(side, Part):
            assert side.reservation.address is not None, "managed memory has an address"
            address = side.reservation.address + side.offset
        else:  # pyopencl takes no read-only buffer
            address = np.frombuffer(side, np.uint8).ctypes.data
        everything = memoryview(_BYTES.from_address(address))
        return self._calls.managed_part(everything[:nbytes].cast("B"))
