"""A pool as a memory resource of ``cuda.core``.

``cuda.core`` calls ``deallocate`` of a resource in the destructor of a buffer, with
whatever exception is in flight still set: Python code that runs there replaces that
exception, and then ends the process. So a buffer owns its memory by reference, as an
array does, and tells the stream in which it is closed by a method of its own.
"""

import functools
import threading
from typing import TYPE_CHECKING, Any

from madl.backends.protocol import Capability
from madl.errors import BackendError, MissingCapabilityError
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
    buffer_class = type("PoolBuffer", (_Buffer, core.Buffer), {})
    parts = {"_buffer_class": buffer_class}
    return type("PoolResource", (_Resource, core.MemoryResource), parts)


class _Resource:
    """The methods that ``cuda.core.MemoryResource`` leaves to subclasses."""

    _buffer_class: Any

    def __init__(self, pool: Pool, tag: str | None) -> None:
        self.pool = pool
        self._tag = tag
        self._backend = cuda_backend_of(pool)
        # Closed in another stream, by a finalizer that interrupted a call of the pool.
        self._late: list[tuple[Memory, object]] = []

    def allocate(self, size: int, *, stream: object) -> "cuda.core.Buffer":
        """Return a buffer that work queued in ``stream`` from now on may use.

        Raises:
            OutOfMemoryError: As for ``Pool.allocate``.
            ValueError: ``stream`` is the per-thread default stream, or of another
                device.
        """
        while self._late:
            self.hold_back(*self._late.pop())
        memory = self.pool.allocate(size, stream=stream, tag=self._tag)
        buffer: cuda.core.Buffer = self._buffer_class.over(memory, self)
        return buffer

    def deallocate(self, ptr: object, size: int, *, stream: object) -> None:
        """Refuse: a buffer owns its memory, which goes back when it is closed.

        Raises:
            MissingCapabilityError: Always.
        """
        raise MissingCapabilityError(
            self.pool.device,
            f"deallocation by a pointer, as of {size} bytes at {ptr}",
            "buffer.close(stream) of the buffer that allocate() returned",
        )

    def hold_back(self, memory: Memory, stream: object) -> None:
        """Keep a block from reuse, once it is free, while a stream may use it."""
        if parts_of(self.pool).shared.lock_holder == threading.get_ident():
            self._late.append((memory, stream))
            return
        try:
            memory.record_stream(stream)
        except BaseException as error:
            # The stream has no lane, so nothing would keep the block: freed now or
            # when the buffer is dropped, it would be handed out under queued work.
            self._backend.finish(stream)
            if not isinstance(error, BackendError | RuntimeError | ValueError):
                raise

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


def _of_resource(name: str) -> Any:  # noqa: ANN401  # a property of any type
    """Return what a buffer says as its resource does; closed, as ``cuda.core`` does."""

    def get(buffer: "_Buffer") -> Any:  # noqa: ANN401  # as above
        if buffer.made_by is None:
            return getattr(super(_Buffer, buffer), name)
        return getattr(buffer.made_by, name)

    return property(get)


class _Buffer:
    """What ``cuda.core.Buffer`` does with its resource, for one that has an owner.

    No method runs when a buffer is dropped: its reference to the memory goes, and the
    memory is freed in the stream that made it, behind the streams it was told of.
    """

    made_by: _Resource | None = None
    """The resource; ``None`` once the buffer is closed."""
    _freed_in: object = None
    owner: Memory | None
    is_closed: bool
    size: int

    device_id = _of_resource("device_id")
    is_device_accessible = _of_resource("is_device_accessible")
    is_host_accessible = _of_resource("is_host_accessible")
    is_managed = _of_resource("is_managed")

    @classmethod
    def over(cls, memory: Memory, resource: _Resource) -> Any:  # noqa: ANN401  # of cuda.core
        """Return a buffer that owns a memory."""
        address = memory.address if memory.nbytes else 0
        # As cuda.core makes its own subclasses: ``from_handle`` makes none.
        buffer = cls._init(address, memory.nbytes, owner=memory)  # type: ignore[attr-defined]  # of cuda.core.Buffer
        buffer.made_by = resource
        return buffer

    def close(self, stream: object = None) -> None:
        """Free the memory behind what is queued in ``stream`` by now.

        The call waits for the device where the pool can have no event of that stream:
        of the per-thread default one, of another context's, of one that is closed.

        Raises:
            TypeError: ``stream`` is none. The buffer stays open.
        """
        freed_in = self._freed_in if stream is None else stream
        if not (self.made_by is None or self.owner is None or freed_in is None):
            self.made_by.hold_back(self.owner, freed_in)
        super().close()  # type: ignore[misc]  # of cuda.core.Buffer
        self.made_by = None

    def set_deallocation_stream(self, stream: object) -> None:
        """Let the memory be freed behind what is queued in ``stream`` by then.

        Raises:
            RuntimeError: The buffer is closed.
            TypeError: ``stream`` is none.
            ValueError: It is the per-thread default stream, or of another device.
        """
        if self.owner is None:
            raise RuntimeError("a closed buffer is freed already")
        self.owner.record_stream(stream)
        self._freed_in = stream

    def copy_to(
        self,
        dst: Any = None,  # noqa: ANN401  # of cuda.core
        *,
        stream: object,
        **options: object,
    ) -> Any:  # noqa: ANN401  # of cuda.core
        """Copy to a buffer; without one, to a new one of the same resource."""
        if dst is None and self.made_by is not None:
            dst = self.made_by.allocate(self.size, stream=stream)
        return super().copy_to(dst, stream=stream, **options)  # type: ignore[misc]  # as above

    @property
    def memory_resource(self) -> _Resource | None:
        """The resource that made the buffer; ``None`` once it is closed."""
        return self.made_by
