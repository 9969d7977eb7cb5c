"""OpenCL buffers: memory without an address, whose parts are sub-buffers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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


ALIGNMENT_NBYTES = 512
"""Of the start of a reservation, as pools need it. Drivers promise 128 or less, so as
much more is taken."""

_skipped: dict[int, int] = {}
"""Bytes between the start of a buffer, by its id, and that of its reservation. Of all
backends, as equal ones copy from each other's memory."""


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
        self._start_alignment = max(self.alignment, ALIGNMENT_NBYTES)
        self.spare_nbytes: int = self._start_alignment - self.alignment
        """By how much a buffer is larger than its reservation."""
        self._kernels: list[Any] = []
        self._device = device

    def reserve(self, nbytes: int) -> Reservation:
        """Make a buffer, and find out where the device has it."""
        calls = self._calls
        taken_nbytes = nbytes + self.spare_nbytes
        buffer = calls.create_buffer(self._context, self._flags, taken_nbytes)
        try:
            if not self._on_host:
                zeros = bytes(min(nbytes, 4))
                calls.wait(calls.fill_buffer(self._queue, buffer, zeros, 0, len(zeros)))
            base = self._base_of(buffer)
        except BaseException:
            calls.release(buffer)
            raise
        skipped_nbytes = -(base or 0) % self._start_alignment
        if skipped_nbytes > self.spare_nbytes:  # sub-buffers could not be aligned
            base, skipped_nbytes = None, 0
        self._parts[id(buffer)] = {}
        _skipped[id(buffer)] = skipped_nbytes
        start = None if base is None else base + skipped_nbytes
        return Reservation(buffer, nbytes, None, start)

    def _base_of(self, buffer: "cl.Buffer") -> int | None:
        """Return where kernels have a buffer; ``None`` where none can be asked.

        OpenCL does not say it. It stays there: the context's other devices, if it has
        any, do not use the memory.
        """
        calls = self._calls
        if self._on_host:
            return calls.host_address(self._queue, buffer)
        if not self._kernels:
            self._kernels.append(calls.address_kernel(self._context, self._device))
        kernel = self._kernels[0]
        if kernel is None:
            return None
        return calls.device_address(self._queue, kernel, buffer)

    def release(self, native: "cl.Buffer") -> None:
        """Release a buffer; the driver keeps it for the work that is queued."""
        self._calls.release(native)
        del _skipped[id(native)]
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
                options[name] = _start_of(side)
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
        start = _start_of(part)
        return self._calls.fill_buffer(queue, buffer, pattern, start, nbytes)

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return a sub-buffer: an object of its own for what may be an older one."""
        parts = self._parts[id(reservation.native)]
        part = parts.get((offset, nbytes))
        if part is None:
            part = self._make_part(reservation, offset, nbytes)
            if len(parts) >= MOST_PARTS:
                parts.clear()
            parts[offset, nbytes] = part
        return self._calls.same_buffer(part)

    def _make_part(
        self, reservation: Reservation, offset: int, nbytes: int
    ) -> "cl.Buffer":
        if offset % self.alignment:
            raise ValueError(
                f"a sub-buffer starts at a multiple of {self.alignment} bytes of its "
                f"buffer, got {offset}; cut the slice there, or pass the whole "
                "memory and an offset"
            )
        start, native = _start_of(Part(reservation, offset)), reservation.native
        return self._calls.sub_buffer(native, start, nbytes)


def _start_of(part: Part) -> int:
    """Return where a part is in its buffer, which may be another library's."""
    return _skipped.get(id(part.reservation.native), 0) + part.offset


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
