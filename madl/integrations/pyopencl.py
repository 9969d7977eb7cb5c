"""A pool as the allocator of PyOpenCL arrays.

PyOpenCL passes its allocator a size and nothing else, so there is one allocator for
each command queue. What it returns keeps its block: a block goes back to the pool with
the last array over it.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from madl.backends.opencl import OpenclBackend
from madl.backends.opencl.errors import translated
from madl.hotpath import BLOCK_GRANULARITY, Memory, place_of
from madl.memory.place import locate, reserved_place
from madl.pool import Pool
from madl.pool.allocate import parts_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyopencl as cl


class PoolAllocator:
    """Takes the memory of ``pyopencl.array`` from a pool: pass it as ``allocator=``.

    Args:
        pool: A pool of an OpenCL device.
        queue: The queue in which the arrays are used; ``None`` for the one that the
            pool was made from. Memory that was freed may be handed out again while
            work in this queue still uses it, as the queue keeps its order. What is
            used in another queue too has to be told by ``record_stream``.
        tag: The tag that the memory is allocated under.

    Raises:
        TypeError: The pool is not of an OpenCL device.
        ValueError: The queue is of another device or context.

    Thread-safe.
    """

    def __init__(
        self,
        pool: Pool,
        queue: "cl.CommandQueue | None" = None,
        *,
        tag: str | None = None,
    ) -> None:
        backend = _backend_of(pool)
        self.pool = pool
        self.queue = backend.queue if queue is None else queue
        # Only those that are set: an allocation without options is quickest.
        self._options: dict[str, Any] = {} if tag is None else {"tag": tag}
        if backend.alignment > BLOCK_GRANULARITY:
            self._options["alignment"] = backend.alignment
        if backend.stream_key(self.queue) != backend.stream_key(backend.queue):
            self._options["stream"] = self.queue
        self._is_managed = backend.is_managed
        self._view: Any = backend.view  # memory.native, without the ways round it

    def __call__(self, nbytes: int) -> "cl.Buffer | cl.SVM | None":
        """Return memory for an array; ``None`` for no bytes, as PyOpenCL wants it.

        Raises:
            OutOfMemoryError: As for ``Pool.allocate``.
        """
        if nbytes == 0:
            return None
        memory = self.pool.allocate(nbytes, **self._options)
        placed: Any = place_of(memory)  # there is an arena, as there are bytes
        native = self._view(*reserved_place(placed[0], placed[1]), nbytes)
        # The object owns the block by this attribute: no callback and no finalizer,
        # in whichever thread the last reference is dropped.
        native.madl_memory = memory
        if self._is_managed:
            # PyOpenCL calls it of the memory of an array that nothing uses any more:
            # its own allocators return objects that have it, and so have buffers.
            native.release = memory.free
        return native

    def __repr__(self) -> str:
        return f"<madl.integrations.pyopencl.PoolAllocator of {self.pool!r}>"


def default_queue(pool: Pool) -> "cl.CommandQueue":
    """Return the queue of a pool's work without a stream: the one it was made from."""
    return _backend_of(pool).queue


def memory_of(array: Any) -> Memory:  # noqa: ANN401  # pyopencl has no types here
    """Return the memory that an array, or its ``base_data``, keeps.

    Raises:
        ValueError: It is not from a pool.
    """
    native = getattr(array, "base_data", array)
    memory = getattr(native, "madl_memory", None)
    if memory is None:
        raise ValueError(
            f"{array!r} has no memory of a madl.Pool; make it with "
            "allocator=PoolAllocator(pool)"
        )
    return cast("Memory", memory)


def record_stream(array: Any, queue: "cl.CommandQueue") -> None:  # noqa: ANN401  # pyopencl has no types here
    """Say that work queued in another queue uses an array.

    Call it after that work is queued and before the array is dropped.

    Raises:
        ValueError: The array is not from a pool, or the queue of another context.
    """
    memory_of(array).record_stream(queue)


@contextlib.contextmanager
def mapped(
    memory: Memory,
    queue: "cl.CommandQueue | None" = None,
    *,
    dtype: "npt.DTypeLike" = "uint8",
) -> "Iterator[np.ndarray[Any, Any]]":
    """Let the CPU read and write memory for the length of a ``with`` block.

    The map waits for what is queued for the memory, and the unmap has been done at the
    end, also after an error. All kinds of OpenCL memory can be mapped. A driver maps
    without a copy what the CPU can reach, and copies the rest there and back.

    Args:
        memory: Memory of an OpenCL device; it must not be freed in the block. A slice
            begins where a sub-buffer may, and kernels keep off it in the block.
        queue: Where the map is queued; ``None`` for the stream that owns the memory.
            What other queues have queued for the memory has to be done by then.
        dtype: Of the array's elements.

    Yields:
        An array over the memory, in one dimension. It must not be used after the block.

    Raises:
        FreedMemoryError: The memory was freed.
        TypeError: It is not of an OpenCL device.
        ValueError: The queue is of another device or context; the memory is no whole
            number of elements; or a sub-buffer cannot begin there.
    """
    import numpy as np

    backend = _backend_of(memory.pool)
    locate(memory, "a map")
    queue = _queue_behind(memory, backend, queue)
    if not memory.nbytes:
        yield np.empty(0, np.uint8).view(dtype)
        return
    native: Any = memory.native
    action = f"map {memory.nbytes} bytes"
    with translated(backend.device, action):
        array, event, unmap = _map(native, queue, memory.nbytes)
    try:
        with translated(backend.device, action):
            event.wait()  # not in the call: other threads run while this waits
        yield array.view(dtype)
    finally:
        with translated(backend.device, f"unmap {memory.nbytes} bytes"):
            unmap().wait()


def _map(native: Any, queue: Any, nbytes: int) -> tuple[Any, Any, Any]:  # noqa: ANN401  # pyopencl has no types here
    """Queue a map; return the bytes, its event, and what queues the unmap."""
    import numpy as np
    import pyopencl as cl

    if isinstance(native, cl.SVM):
        managed: Any = native.map_rw(queue, is_blocking=False)
        array = np.frombuffer(managed.array, np.uint8)
        return array, managed.event, managed.release
    flags = cl.map_flags.READ | cl.map_flags.WRITE
    array, event = cl.enqueue_map_buffer(
        queue, native, flags, 0, (nbytes,), np.uint8, is_blocking=False
    )
    return array, event, array.base.release


def _queue_behind(memory: Memory, backend: OpenclBackend, queue: Any) -> Any:  # noqa: ANN401  # pyopencl has no types here
    """Return a queue whose work from now on is behind that of the memory's owner."""
    owner = memory.stream
    if queue is None:
        return backend.queue if owner is None else owner
    if backend.stream_key(queue) != backend.stream_key(owner):
        backend.wait(queue, backend.record(owner))
    return queue


def _backend_of(pool: object) -> OpenclBackend:
    backend = parts_of(pool).backend.backend if isinstance(pool, Pool) else None
    if not isinstance(backend, OpenclBackend):
        raise TypeError(
            f"pool must be of an OpenCL device, got {pool!r}; make one with "
            "Pool('opencl:0') or Pool(OpenclBackend(queue))"
        )
    return backend
