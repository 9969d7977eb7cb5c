"""OpenCL buffers: memory without an address, whose parts are sub-buffers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from madl.backends.opencl.calls import OpenclCalls
from madl.backends.protocol import Capability, Reservation

if TYPE_CHECKING:
    import pyopencl as cl

PATTERN_NBYTES = 128
"""The widest pattern of a fill. One byte at a time takes a driver up to 70 times as
long."""

MOST_PARTS = 1024
"""Sub-buffers of one buffer that are kept: what makes one takes longer than the rest
of an allocation, and a pool hands out the same places again and again."""


class Part(NamedTuple):
    """Where one side of a copy starts in memory of the device."""

    reservation: Reservation
    offset: int


Side = Part | memoryview


class Buffers:
    """Buffers of one context, allocated on one device when they are made.

    Drivers may leave that to the first use, where running out of memory fails some
    kernel, or ends the process. So memory of a CPU is taken when it is made, by a flag,
    and on other devices the first bytes of a new buffer are written.

    Args:
        calls: How pyopencl is called.
        context: Whose buffers they are.
        device: Where their memory is.
        queue: For the write; nothing in it waits for work of the user.
    """

    capabilities = Capability.VIEW

    def __init__(
        self,
        calls: OpenclCalls,
        context: "cl.Context",
        device: "cl.Device",
        queue: "cl.CommandQueue",
    ) -> None:
        import pyopencl as cl

        self._calls = calls
        self._context = context
        self._queue = queue
        self._on_host = bool(device.type & cl.device_type.CPU)
        self._flags = cl.mem_flags.READ_WRITE
        if self._on_host:
            self._flags |= cl.mem_flags.ALLOC_HOST_PTR
        self.alignment: int = max(device.mem_base_addr_align // 8, 1)
        # By the id of a buffer, then by offset and bytes: a part depends on nothing
        # else, so any block at the same place can use it.
        self._parts: dict[int, dict[tuple[int, int], cl.Buffer]] = {}

    def reserve(self, nbytes: int) -> Reservation:
        """Make a buffer."""
        calls = self._calls
        buffer = calls.create_buffer(self._context, self._flags, nbytes)
        if not self._on_host:
            try:
                zeros = bytes(min(nbytes, 4))
                calls.wait(calls.fill_buffer(self._queue, buffer, zeros, 0, len(zeros)))
            except BaseException:
                calls.release(buffer)
                raise
        self._parts[id(buffer)] = {}
        return Reservation(buffer, nbytes, None)

    def release(self, native: "cl.Buffer") -> None:
        """Release a buffer; the driver keeps it for the work that is queued."""
        self._calls.release(native)
        del self._parts[id(native)]  # else they would keep its memory

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
        options: dict[str, object] = {}
        ends = []
        for side, name in ((to, "dst_offset"), (of, "src_offset")):
            if isinstance(side, Part):
                options[name] = side.offset
                ends.append(side.reservation.native)
            else:
                options["is_blocking"] = is_blocking
                ends.append(side)
        if "is_blocking" not in options:
            options["byte_count"] = nbytes
        return self._calls.copy(queue, *ends, **options)

    def fill(
        self, queue: "cl.CommandQueue", part: Part, nbytes: int, pattern: bytes
    ) -> "cl.Event":
        """Queue the filling of a part with a pattern."""
        buffer = part.reservation.native
        return self._calls.fill_buffer(queue, buffer, pattern, part.offset, nbytes)

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return a sub-buffer: an object of its own for what may be an older one."""
        parts = self._parts[id(reservation.native)]
        part = parts.get((offset, nbytes))
        if part is None:
            part = self._make_part(reservation.native, offset, nbytes)
            if len(parts) >= MOST_PARTS:
                parts.clear()
            parts[offset, nbytes] = part
        return self._calls.same_buffer(part)

    def _make_part(self, native: "cl.Buffer", offset: int, nbytes: int) -> "cl.Buffer":
        if offset % self.alignment:
            raise ValueError(
                f"a sub-buffer starts at a multiple of {self.alignment} bytes of its "
                f"buffer, got {offset}; cut the slice there, or pass the whole "
                "memory and an offset"
            )
        return self._calls.sub_buffer(native, offset, nbytes)


def fill_parts(offset: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, stop and pattern width: what can be filled fast, and its ends."""
    stop = offset + nbytes
    first = min(-(-offset // PATTERN_NBYTES) * PATTERN_NBYTES, stop)
    last = max(stop // PATTERN_NBYTES * PATTERN_NBYTES, first)
    for start, end, width in (
        (offset, first, 1),
        (first, last, PATTERN_NBYTES),
        (last, stop, 1),
    ):
        if start < end:
            yield start, end, width
