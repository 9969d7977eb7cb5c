"""A pool as the allocator of CuPy arrays.

CuPy passes its allocator a size; the stream is the current one. Arrays keep their block
by reference, so it goes back with the last of them, without a callback.
"""

import functools
from typing import TYPE_CHECKING, Any

from madl.hotpath import Memory
from madl.integrations.peers import (
    cuda_backend_of,
    import_peer,
    memory_of,
    record_stream,
)
from madl.pool import Pool

if TYPE_CHECKING:
    import cupy

__all__ = ["PoolAllocator", "memory_of", "record_stream"]


class PoolAllocator:
    """Takes the memory of CuPy arrays from a pool: pass it to ``set_allocator``.

    Args:
        pool: A pool of the CUDA device that the arrays are on.
        stream: The stream in which they are used; ``None`` for the one that is
            current when an array is made. What is used in another stream too has to
            be told by ``record_stream``.
        tag: The tag that the memory is allocated under.

    Raises:
        ImportError: CuPy is not installed.
        TypeError: The pool is not of a CUDA device.

    Thread-safe.
    """

    def __init__(
        self, pool: Pool, stream: object = None, *, tag: str | None = None
    ) -> None:
        self.pool = pool
        self.stream = stream
        self._tag = tag
        self._index = cuda_backend_of(pool).index
        self._cupy = import_peer("cupy", "cupy-cuda13x")
        self._block_class = _block_class()

    def __call__(self, nbytes: int) -> "cupy.cuda.MemoryPointer":
        """Return memory for an array.

        Raises:
            OutOfMemoryError: As for ``Pool.allocate``.
            ValueError: The current stream is the per-thread default stream.
        """
        stream = self.stream
        if stream is None:
            stream = self._cupy.cuda.get_current_stream().ptr
        memory = self.pool.allocate(int(nbytes), stream=stream, tag=self._tag)
        return self._cupy.cuda.MemoryPointer(self._block_class(memory, self._index), 0)

    def __repr__(self) -> str:
        return f"<madl.integrations.cupy.PoolAllocator of {self.pool!r}>"


@functools.cache
def _block_class() -> Any:  # noqa: ANN401  # CuPy has no types here
    memory = import_peer("cupy.cuda.memory", "cupy-cuda13x")
    return type("PoolBlock", (_Block, memory.BaseMemory), {})


class _Block:
    """The attributes that ``cupy.cuda.memory.BaseMemory`` expects of subclasses."""

    def __init__(self, memory: Memory, index: int) -> None:
        self.madl_memory = memory
        self.ptr = memory.address
        self.size = memory.nbytes
        self.device_id = index
