"""A pool as a memory resource of ``cuda.core``.

``cuda.core`` hands a resource the stream of every allocation and of every
deallocation, so its buffers are stream-ordered like everything in a pool.
"""

import functools
import threading
from typing import TYPE_CHECKING, Any

from madl.backends.protocol import Capability
from madl.hotpath import Memory
from madl.integrations.peers import cuda_backend_of, import_peer
from madl.pool import Pool
from madl.pool.allocate import parts_of

if TYPE_CHECKING:
    import cuda.core


def memory_resource(
    pool: Pool, *, tag: str | None = None
) -> "cuda.core.MemoryResource":
    """Return a memory resource whose buffers come from a pool.

    Set it as ``device.memory_resource``, or call its ``allocate(nbytes, stream=)``.
    It is a ``cuda.core.MemoryResource``, and keeps the pool.

    Args:
        pool: A pool of a CUDA device, of any kind of its memory.
        tag: The tag that buffers are allocated under.

    Raises:
        ImportError: ``cuda.core`` is not installed.
        TypeError: The pool is not of a CUDA device.

    Thread-safe.
    """
    return _resource_class()(pool, tag)


@functools.cache
def _resource_class() -> Any:  # noqa: ANN401  # cuda.core has no types here
    core = import_peer("cuda.core", "cuda-core")
    return type("PoolResource", (_Resource, core.MemoryResource), {"_core": core})


class _Resource:
    """The methods that ``cuda.core.MemoryResource`` leaves to subclasses."""

    _core: Any

    def __init__(self, pool: Pool, tag: str | None) -> None:
        self.pool = pool
        self._tag = tag
        self._backend = cuda_backend_of(pool)
        self._live: dict[int, Memory] = {}
        # Freed in another stream, by a finalizer that interrupted a call of the pool.
        self._late: list[tuple[Memory, object]] = []

    def allocate(self, size: int, *, stream: object) -> "cuda.core.Buffer":
        """Return a buffer that work queued in ``stream`` from now on may use.

        Raises:
            OutOfMemoryError: As for ``Pool.allocate``.
        """
        while self._late:
            _free_in(*self._late.pop())
        memory = self.pool.allocate(size, stream=stream, tag=self._tag)
        if not size:
            return self._core.Buffer.from_handle(0, 0, owner=memory)
        self._live[memory.address] = memory
        try:
            return self._core.Buffer.from_handle(
                memory.address, size, mr=self, stream=stream
            )
        except BaseException:
            del self._live[memory.address]
            raise

    def deallocate(self, ptr: object, size: int, *, stream: object) -> None:
        """Take a buffer back; work queued in ``stream`` by now still uses it.

        ``cuda.core`` calls it, also in finalizers.
        """
        memory = self._live.pop(int(ptr))  # type: ignore[call-overload]  # of cuda.core
        handle = self._backend.stream_handle
        if handle(stream) == handle(memory.stream):
            memory.free()
        elif parts_of(self.pool).shared.lock_holder == threading.get_ident():
            self._late.append((memory, stream))
        else:
            _free_in(memory, stream)

    @property
    def device_id(self) -> int:
        """The device's number; -1 for host memory."""
        return -1 if self._backend.memory == "pinned" else self._backend.index

    @property
    def is_device_accessible(self) -> bool:
        """True: pinned and managed memory has one address for host and device."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the CPU can reach the buffers."""
        return Capability.HOST_ACCESS in self._backend.capabilities

    @property
    def is_managed(self) -> bool:
        """Whether the driver moves the buffers between host and device."""
        return self._backend.memory == "managed"

    def __repr__(self) -> str:
        return f"<madl memory resource of {self.pool!r}>"


def _free_in(memory: Memory, stream: object) -> None:
    memory.record_stream(stream)
    memory.free()
