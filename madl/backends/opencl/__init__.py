"""OpenCL memory, through pyopencl: devices ``"opencl:0"``, ``"opencl_managed:0"``.

The first is of buffers, which have no address and whose parts are sub-buffers. The
second has one address for host and device, where a device offers that.
"""

from typing import TYPE_CHECKING, Any

from madl.backends.kept import foreign
from madl.backends.opencl.buffers import Buffers, Part, Side, fill_parts
from madl.backends.opencl.calls import (
    OpenclCalls,
    check_process,
    is_child,
    leave_to_parent,
)
from madl.backends.opencl.devices import (
    KIND,
    MANAGED_KIND,
    all_devices,
    memory_of,
    name_of,
    resolve,
)
from madl.backends.opencl.errors import too_large, translated, translation
from madl.backends.opencl.pocl import guard_rectangles
from madl.backends.opencl.queues import OpenclQueues
from madl.backends.opencl.svm import ManagedMemory
from madl.backends.protocol import (
    ArrayPlace,
    Backend,
    Capability,
    MemoryInfo,
    Reservation,
)
from madl.errors import BackendNotFoundError, MadlError, NotContiguousError
from madl.sizes import format_nbytes

if TYPE_CHECKING:
    import pyopencl as cl

GRANULARITY_NBYTES = 4096


class OpenclBackend(OpenclQueues):
    """Memory of one OpenCL device, in one context.

    A stream is a ``pyopencl.CommandQueue`` that keeps its order. Two backends of one
    device, context and kind of memory are equal.

    Args:
        target: A device's name, or a pyopencl ``Context``, ``Device`` or
            ``CommandQueue``; the latter is then that of all work without a stream.
            By name and by device all backends of a process share one context.
        memory: ``"buffer"``; ``"fine"`` or ``"coarse"`` for shared virtual memory of
            that grain, ``"managed"`` for the finer one that the device has. ``None``
            for what the name says.

    Raises:
        BackendNotFoundError: There is no such device, or memory.
        ForkError: This is the child of a process that has opened a device.
    """

    def __init__(
        self,
        target: "str | cl.Context | cl.Device | cl.CommandQueue" = "opencl:0",
        *,
        memory: str | None = None,
        _calls: OpenclCalls | None = None,
    ) -> None:
        found = resolve(target)
        by_name = isinstance(target, str) and target.startswith(MANAGED_KIND)
        self.memory = memory_of(
            found.device, memory or ("managed" if by_name else "buffer")
        )
        self.is_managed = self.memory != "buffer"
        calls = _calls or OpenclCalls()
        name = name_of(found.device, MANAGED_KIND if self.is_managed else KIND)
        super().__init__(calls, name, found)
        self.granularity: int = max(
            GRANULARITY_NBYTES, found.device.mem_base_addr_align // 8
        )
        self._memory: Buffers | ManagedMemory = (
            ManagedMemory(calls, found.context, fine=self.memory == "fine")
            if self.is_managed
            else Buffers(calls, found.context, found.device, self._private)
        )
        if not self.is_managed:
            guard_rectangles(found.device)
        self.alignment = self._memory.alignment
        self.capabilities = (
            self._memory.capabilities
            | Capability.COPY
            | Capability.FILL
            | Capability.STREAM_ORDERED
            | Capability.DESCRIBE
        )
        self.held: dict[int, Reservation] = {}  # by the id of its native object
        leave_to_parent(self)

    @property
    def largest_nbytes(self) -> int:
        """What one reservation can have, by CL_DEVICE_MAX_MEM_ALLOC_SIZE."""
        largest = int(self._device.max_mem_alloc_size) - self._memory.spare_nbytes
        return largest // self.granularity * self.granularity

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory from the device, now."""
        check_process(self.device)
        if nbytes > self.largest_nbytes:
            function = "clSVMAlloc" if self.is_managed else "clCreateBuffer"
            raise too_large(self.device, function, nbytes, self.largest_nbytes)
        with translated(self.device, f"reserve {nbytes} bytes", allocating=nbytes):
            reservation = self._memory.reserve(nbytes)
        self.held[id(reservation.native)] = reservation
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give memory back. In a forked child, leave it to the parent."""
        key = id(reservation.native)
        if self.held.get(key) is not reservation:
            raise foreign(self.device, reservation)
        is_parents = is_child()
        if self.is_managed and not is_parents:
            # clSVMFree does not wait for queued work that uses the memory.
            self._finish()
        # Forgotten before it is released: after a Ctrl-C in the call it may be gone,
        # and a second release could free what has its handle by then.
        del self.held[key]
        if is_parents:
            return
        try:
            with translated(self.device, f"release {reservation.nbytes} bytes"):
                self._memory.release(reservation.native)
        except MadlError:
            self.held[key] = reservation
            raise

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory less what this backend holds.

        OpenCL does not say what others have taken.
        """
        total: int = self._device.global_mem_size
        held = sum(one.nbytes for one in list(self.held.values()))
        return MemoryInfo(total, max(total - held, 0))

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy all of ``source`` to ``offset``."""
        to = Part(reservation, offset)
        self._copy_host("to the device", to, source, host=source, stream=stream)

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy from ``offset`` into all of ``destination``."""
        of = Part(reservation, offset)
        self._copy_host("to the host", destination, of, host=destination, stream=stream)

    def _copy_host(
        self, action: str, to: Side, of: Side, *, host: memoryview, stream: object
    ) -> None:
        queue = self._queue_of(stream)
        # pyopencl keeps the interpreter lock in a blocking copy of managed memory:
        # work that a thread of Python has to release would wait for this one. So the
        # copy is queued, and its event waited for.
        blocks = stream is None and not self.is_managed
        with translated(self.device, f"copy {host.nbytes} bytes {action}"):
            event = self._memory.copy(queue, to, of, host.nbytes, is_blocking=blocks)
        if blocks:
            return
        kept = self._in_flight.keep(event, host)
        if stream is None:
            self.synchronize(event)
            self._in_flight.let_go(kept)
            return
        with translated(self.device, "query an event"):
            self._in_flight.look()

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
        """Copy inside the device, also between reservations of equal backends."""
        queue = self._queue_of(stream)
        of, to = Part(source, source_offset), Part(destination, destination_offset)
        with translated(self.device, f"copy {nbytes} bytes inside the device"):
            event = self._memory.copy(queue, to, of, nbytes, is_blocking=False)
        if stream is None:
            self.synchronize(event)

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
        queue, event = self._queue_of(stream), None
        with translated(self.device, f"fill {nbytes} bytes"):
            for start, stop, width in fill_parts(offset, nbytes):
                part, pattern = Part(reservation, start), bytes([value]) * width
                event = self._memory.fill(queue, part, stop - start, pattern)
        if stream is None:
            self.synchronize(event)

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return a sub-buffer, or a ``pyopencl.SVM``, for a part of a reservation."""
        check_process(self.device)
        try:  # no translated(): arrays of pyopencl make one view each
            return self._memory.view(reservation, offset, nbytes)
        except self._calls.Error as error:
            action = f"view {nbytes} bytes at {offset}"
            raise translation(error, self.device, action) from error

    def describe(self) -> dict[str, str]:
        """Return what is in force on this device, in words, for ``madl info``."""
        device = self._device
        return {
            "platform": f"{device.platform.name}, {device.platform.version}",
            "name": f"{device.name}, driver {device.driver_version}",
            "largest reservation": format_nbytes(self.largest_nbytes),
            "sub-buffers start at": f"multiples of {device.mem_base_addr_align // 8}",
            "kind of memory": self.memory,
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpenclBackend):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, object, str]:
        return (self.context, self._device, self.memory)


def madl_devices() -> list[str]:
    """Return the OpenCL devices, and those of managed memory, of this machine."""
    try:
        devices = all_devices()
    except BackendNotFoundError:
        return []
    names = []
    for kind, memory in ((KIND, "buffer"), (MANAGED_KIND, "managed")):
        for number, device in enumerate(devices):
            try:
                memory_of(device, memory)
            except BackendNotFoundError:
                continue
            names.append(f"{kind}:{number}")
    return names


def madl_open(device: str) -> Backend | None:
    """Return a backend for ``"opencl:N"`` or ``"opencl_managed:N"``."""
    if device.partition(":")[0] not in (KIND, MANAGED_KIND):
        return None
    return OpenclBackend(device)


def wrap_array(array: Any) -> ArrayPlace:  # noqa: ANN401  # pyopencl has no types here
    """Return where an array of PyOpenCL lies.

    Raises:
        NotContiguousError: It has gaps.
        ValueError: It has no queue.
        TypeError: It is over shared virtual memory.
    """
    import pyopencl as cl

    if not array.flags.c_contiguous:
        raise NotContiguousError(array.shape, array.strides)
    if array.queue is None:
        raise ValueError(
            "the PyOpenCL array has no queue. Try: array.with_queue(queue)"
        )
    native = array.base_data
    if native is not None and not isinstance(native, cl.MemoryObjectHolder):
        raise TypeError(
            f"the PyOpenCL array is over {type(native).__name__}, no buffer. Try: the "
            "memory under it, madl.integrations.pyopencl.memory_of(array)"
        )
    offset, nbytes = array.offset, array.nbytes
    reservation = Reservation(native, offset + nbytes, None)
    backend = OpenclBackend(array.queue)
    return ArrayPlace(backend, reservation, offset, nbytes, array.queue, False)
