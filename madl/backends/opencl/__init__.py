"""OpenCL memory, through pyopencl: devices ``"opencl:0"``, ``"opencl_managed:0"``.

The first is of buffers, which have no address and whose parts are sub-buffers. The
second has one address for host and device, where a device offers that.
"""

from typing import TYPE_CHECKING, Any

from madl.backends.opencl.buffers import Buffers
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
from madl.backends.opencl.queues import Queues
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


class OpenclBackend:
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
        self.device = name_of(found.device, MANAGED_KIND if self.is_managed else KIND)
        self.context = found.context
        self.granularity: int = max(
            GRANULARITY_NBYTES, found.device.mem_base_addr_align // 8
        )
        self._device = found.device
        calls = _calls or OpenclCalls()
        self._error = calls.Error
        self._queues = Queues(calls, self.device, found)
        private = self._queues.private
        self._memory: Buffers | ManagedMemory = (
            ManagedMemory(calls, found.context, fine=self.memory == "fine")
            if self.is_managed
            else Buffers(calls, found.context, found.device, private)
        )
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
    def queue(self) -> "cl.CommandQueue":
        """The queue of work without a stream."""
        return self._queues.default

    @property
    def largest_nbytes(self) -> int:
        """What one reservation can have; CL_DEVICE_MAX_MEM_ALLOC_SIZE."""
        largest = int(self._device.max_mem_alloc_size)
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
            raise ValueError(
                f"reservation must be one of this backend ({self.device}) that was "
                f"not released yet, got {reservation!r}"
            )
        is_parents = is_child()
        if self.is_managed and not is_parents:
            # clSVMFree does not wait for queued work that uses the memory.
            self._queues.finish()
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
        queue = self._queues.of(stream)
        with translated(self.device, f"copy {source.nbytes} bytes to the device"):
            event = self._memory.copy_from_host(
                queue, reservation, offset, source, is_blocking=stream is None
            )
        if stream is not None:
            self._queues.keep(event, source)

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy from ``offset`` into all of ``destination``."""
        queue = self._queues.of(stream)
        with translated(self.device, f"copy {destination.nbytes} bytes to the host"):
            event = self._memory.copy_to_host(
                queue, reservation, offset, destination, is_blocking=stream is None
            )
        if stream is not None:
            self._queues.keep(event, destination)

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
        queue = self._queues.of(stream)
        with translated(self.device, f"copy {nbytes} bytes inside the device"):
            event = self._memory.copy_inside(
                queue, source, source_offset, destination, destination_offset, nbytes
            )
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
        queue = self._queues.of(stream)
        with translated(self.device, f"fill {nbytes} bytes"):
            event = self._memory.fill(queue, reservation, offset, nbytes, value)
        if stream is None:
            self.synchronize(event)

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return a sub-buffer, or a ``pyopencl.SVM``, for a part of a reservation."""
        check_process(self.device)
        try:  # no translated(): arrays of pyopencl make one view each
            return self._memory.view(reservation, offset, nbytes)
        except self._error as error:
            action = f"view {nbytes} bytes at {offset}"
            raise translation(error, self.device, action) from error

    def stream_key(self, stream: object) -> int:
        """Return what OpenCL calls a command queue."""
        return self._queues.key(stream)

    def record(self, stream: object) -> object:
        """Return a marker at the end of a queue; of the default queue for None."""
        return self._queues.record(stream)

    def is_done(self, event: Any) -> bool:  # noqa: ANN401  # an event of pyopencl
        """Return whether a marker has been reached."""
        return self._queues.is_done(event)

    def wait(self, stream: object, event: Any) -> None:  # noqa: ANN401  # an event of pyopencl
        """Let a queue wait for a marker, on the device."""
        self._queues.wait(stream, event)

    def synchronize(self, event: Any) -> None:  # noqa: ANN401  # an event of pyopencl
        """Return when a marker has been reached."""
        self._queues.synchronize(event)

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
