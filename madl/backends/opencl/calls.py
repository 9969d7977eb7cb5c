"""pyopencl's calls that take or move memory, and the processes that may make them.

They raise pyopencl's own errors; in a test, any of them can be made to fail.

A forked child makes none in the driver that its parent has opened: the threads in which
the driver runs its work are not in the child, so a call could deadlock, and a release
could free what the parent uses.
"""

import ctypes
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from madl.errors import ForkError

if TYPE_CHECKING:
    import pyopencl as cl

_TELLS_ADDRESS = """
kernel void tell(global uchar *buffer, global ulong *out) { out[0] = (ulong) buffer; }
"""

_opened: list[int] = []  # the process that opened a device first
_forked: list[int] = []  # the same, in its children
_backends: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


class OpenclCalls:
    """pyopencl as it is installed here.

    Raises:
        ImportError: It is not.
    """

    def __init__(self) -> None:
        import pyopencl

        self._cl: Any = pyopencl
        self.Error: type[Exception] = pyopencl.Error
        """What each call raises when it fails."""
        # pyopencl's own, by the names at which a test lets them fail.
        self.create_queue = self._cl.CommandQueue
        self.create_buffer = self._cl.Buffer
        self.create_managed = self._cl.SVMAllocation
        self.managed_part = self._cl.SVM
        self.copy = self._cl.enqueue_copy
        self.fill_buffer = self._cl.enqueue_fill_buffer
        self.fill_managed = self._cl.enqueue_svm_memfill
        self.mark = self._cl.enqueue_marker

    def release(self, native: "cl.Buffer | cl.SVMAllocation") -> None:
        """Release a buffer or managed memory."""
        native.release()

    def sub_buffer(self, buffer: "cl.Buffer", offset: int, nbytes: int) -> "cl.Buffer":
        """Return a buffer for a part of one."""
        return buffer.get_sub_region(offset, nbytes)

    def same_buffer(self, buffer: "cl.Buffer") -> "cl.Buffer":
        """Return another object for a buffer, which ends with the last of them."""
        return self._cl.Buffer.from_int_ptr(buffer.int_ptr)

    def host_address(self, queue: "cl.CommandQueue", buffer: "cl.Buffer") -> int:
        """Return where the CPU has a buffer: on a CPU, where kernels have it too."""
        array, event = self._cl.enqueue_map_buffer(
            *(queue, buffer, self._cl.map_flags.READ, 0, (1,), "uint8"),
            is_blocking=False,
        )
        event.wait()
        address: int = array.ctypes.data
        array.base.release(queue).wait()
        return address

    def address_kernel(self, context: "cl.Context", device: "cl.Device") -> Any:  # noqa: ANN401  # a cl.Kernel
        """Return a kernel that tells where a buffer is; ``None`` without a compiler."""
        if not device.compiler_available:
            return None
        return self._cl.Program(context, _TELLS_ADDRESS).build(devices=[device]).tell

    def device_address(
        self, queue: "cl.CommandQueue", kernel: "cl.Kernel", buffer: "cl.Buffer"
    ) -> int:
        """Return where kernels have a buffer."""
        found = bytearray(8)
        out = self._cl.Buffer(queue.context, self._cl.mem_flags.READ_WRITE, 8)
        kernel.set_args(buffer, out)
        self._cl.enqueue_nd_range_kernel(queue, kernel, (1,), None)
        self._cl.enqueue_copy(queue, found, out)
        return int.from_bytes(found, sys.byteorder)

    def flush(self, queue: "cl.CommandQueue") -> None:
        """Submit what is queued to the device: without a flush it need never start."""
        queue.flush()

    def hold_back(self, queue: "cl.CommandQueue", event: "cl.Event") -> None:
        """Let what is queued from now on wait for an event."""
        self._cl.enqueue_barrier(queue, wait_for=[event])

    def status(self, event: "cl.Event") -> int:
        """Return 0 when an event is reached, less when its work failed."""
        return int(event.command_execution_status)

    def wait(self, event: "cl.Event") -> None:
        """Return when an event is reached."""
        event.wait()


def note_opening(device: str) -> None:
    """Take note that this process opens a device.

    Raises:
        ForkError: Its parent has opened one.
    """
    check_process(device)
    if not _opened:
        _opened.append(os.getpid())


def is_child() -> bool:
    """Return whether a parent of this process has opened a device."""
    return bool(_forked)


def check_process(device: str) -> None:
    """Raise in a forked child.

    Raises:
        ForkError: The parent has opened a device.
    """
    if _forked:
        raise ForkError(device, _forked[0])


def leave_to_parent(backend: Any) -> None:  # noqa: ANN401  # OpenclBackend, which is not known here
    """Let a child never finalize a backend, nor what it holds at the fork."""
    _backends[id(backend)] = backend  # by id, as two backends may be equal


def _after_fork_in_child() -> None:
    if not _forked:
        _forked.extend(_opened)
    for backend in list(_backends.values()):
        for kept in (backend, *backend.held.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
