"""A pool as the allocator of PyOpenCL arrays.

PyOpenCL passes its allocator a size and nothing else, so there is one allocator for
each command queue. What it returns keeps its block: a block goes back to the pool with
the last array over it.
"""

from typing import TYPE_CHECKING, Any, cast

from madl.backends.opencl import OpenclBackend
from madl.hotpath import BLOCK_GRANULARITY, Memory
from madl.pool import Pool

if TYPE_CHECKING:
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
        is_default = backend.stream_key(self.queue) == backend.stream_key(backend.queue)
        self._stream = None if is_default else self.queue
        self._tag = tag
        self._view: Any = backend.view  # memory.native, without the ways round it
        self._alignment = (
            backend.alignment if backend.alignment > BLOCK_GRANULARITY else None
        )

    def __call__(self, nbytes: int) -> "cl.Buffer | cl.SVM | None":
        """Return memory for an array; ``None`` for no bytes, as PyOpenCL wants it.

        Raises:
            OutOfMemoryError: As for ``Pool.allocate``.
        """
        if nbytes == 0:
            return None
        memory = self.pool.allocate(
            nbytes, alignment=self._alignment, stream=self._stream, tag=self._tag
        )
        placed: Any = memory._place()  # there is an arena, as there are bytes
        native = self._view(placed[0].reservation, placed[1], nbytes)
        # The attribute ends with the object, and the block with the attribute: no
        # callback, no finalizer of ours, whoever drops the last reference.
        native.madl_memory = memory
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


def _backend_of(pool: Pool) -> OpenclBackend:
    backend = pool._backend.inner
    if not isinstance(backend, OpenclBackend):
        raise TypeError(
            f"pool must be of an OpenCL device, got {pool!r}; make one with "
            "Pool('opencl:0') or Pool(OpenclBackend(queue))"
        )
    return backend
