"""A pool behind Numba's CUDA arrays: an External Memory Management plugin.

``NUMBA_CUDA_MEMORY_MANAGER=madl.integrations.numba`` chooses it without a change to a
program. Numba tells its memory manager no stream, so memory is of the legacy default
one, and what is used in another stream has to be told by ``record_stream``.
"""

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from madl.errors import MissingCapabilityError
from madl.hotpath import Memory
from madl.integrations.peers import (
    cuda_backend_of,
    import_peer,
    memory_of,
    record_stream,
)
from madl.pool import Pool
from madl.pool import default as defaults

if TYPE_CHECKING:
    from numba.cuda import MemoryPointer

__all__ = ["memory_of", "pool_of", "record_stream", "use_pool"]

INTERFACE_VERSION = 1
"""Of Numba's plugin interface."""

_pools: dict[str, Pool] = {}


def use_pool(*pools: Pool) -> None:
    """Let Numba take the memory of its CUDA arrays from pools, from now on.

    Call it before Numba has used a device: it asks for its memory manager once. Without
    a pool of a device, ``madl.default_pool`` of that device serves it.

    Args:
        pools: Of ``"cuda:0"`` and so on, at most one for each device.

    Raises:
        ImportError: Numba's CUDA target is not installed.
        RuntimeError: Numba has a memory manager already, and has used it.
        TypeError: A pool is not of a CUDA device.
    """
    for pool in pools:
        cuda_backend_of(pool)
    manager = _manager_class()
    driver = import_peer("numba.cuda.cudadrv.driver", "numba-cuda")
    if driver._memory_manager not in (None, manager):
        raise RuntimeError(
            f"Numba takes its memory from {driver._memory_manager.__name__} already; "
            "call use_pool before the first CUDA array, or set "
            "NUMBA_CUDA_MEMORY_MANAGER=madl.integrations.numba"
        )
    import_peer("numba.cuda", "numba-cuda").set_memory_manager(manager)
    _pools.update((pool.device, pool) for pool in pools)


def pool_of(device: str) -> Pool:
    """Return the pool that serves Numba on a device such as ``"cuda:0"``."""
    pool = _pools.get(device)
    if pool is None or pool.is_closed:
        pool = _pools[device] = defaults.default_pool(device)
    return pool


class _Manager:
    """The methods that Numba's ``HostOnlyCUDAMemoryManager`` leaves to subclasses.

    There is one for each context, and so for each device. Pinned memory stays Numba's:
    the CPU writes to it without regard to streams, so a pool could not know when queued
    copies have read it.
    """

    context: Any
    deallocations: Any
    _cuda: Any

    def initialize(self) -> None:
        """Let Numba keep as much pinned memory for a later free as it does itself.

        It calls this whenever it enters the context.
        """
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = self.get_memory_info().total

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this is written for."""
        return INTERFACE_VERSION

    @property
    def _device(self) -> str:
        # Of a context that Numba did not make, it is the driver's own CUdevice.
        device = self.context.device
        return f"cuda:{int(getattr(device, 'id', device))}"

    def memalloc(self, size: int) -> "MemoryPointer":
        """Return device memory; its block goes back with the last pointer to it.

        Raises:
            OutOfMemoryError: As for ``Pool.allocate``.
        """
        memory = pool_of(self._device).allocate(int(size))
        address = ctypes.c_void_p(memory.address)
        pointer = self._cuda.MemoryPointer(weakref.proxy(self.context), address, size)
        # The pointer owns the block by this attribute: no finalizer, which Numba would
        # also call at interpreter shutdown.
        pointer.madl_memory = memory
        return pointer

    def get_memory_info(self) -> Any:  # noqa: ANN401  # Numba has no types here
        """Return the bytes that can be allocated, and all bytes, of the pool."""
        pool = pool_of(self._device)
        stats = pool.stats()
        info = cuda_backend_of(pool).memory_info()
        free = info.available_nbytes + stats.committed_nbytes - stats.live_nbytes
        total = info.total_nbytes
        if pool.limit_nbytes is not None:
            free = min(free, pool.limit_nbytes - stats.live_nbytes)
            total = min(total, pool.limit_nbytes)
        return self._cuda.MemoryInfo(free=free, total=total)

    def get_ipc_handle(self, memory: "MemoryPointer") -> Any:  # noqa: ANN401  # it only raises
        """Refuse: a handle would share the other blocks of the arena.

        Raises:
            MissingCapabilityError: Always.
        """
        raise MissingCapabilityError(
            self._device, "IPC handles of a pool's blocks", "send a copy on the host"
        )

    def reset(self) -> None:
        """Give back to the device what is free, before its context goes."""
        super().reset()  # type: ignore[misc]  # Numba's
        pool = _pools.get(self._device)
        if pool is not None:
            pool.trim()


@functools.cache
def _manager_class() -> Any:  # noqa: ANN401  # Numba has no types here
    cuda = import_peer("numba.cuda", "numba-cuda")
    base = getattr(cuda, "HostOnlyCUDAMemoryManager", None)
    if base is None:
        raise ImportError(
            "Numba's CUDA simulator has no memory managers; unset NUMBA_ENABLE_CUDASIM"
        )
    driver: Any = import_peer("numba.cuda.cudadrv.driver", "numba-cuda")
    driver.device_extents = _extents_of_blocks(driver.device_extents)
    return type("PoolManager", (_Manager, base), {"_cuda": cuda})


def _extents_of_blocks(
    ask_driver: Callable[[Any], tuple[int, int]],
) -> Callable[[Any], tuple[int, int]]:
    """Return Numba's ``device_extents``, which knows the blocks of pools too.

    It asks the driver, and has no hook for a memory manager: of a block the driver
    answers the whole segment, and who fills an array by ``device_memory_size`` would
    overwrite the blocks beside it.
    """

    def device_extents(devmem: Any) -> tuple[int, int]:  # noqa: ANN401  # Numba has no types here
        owner = getattr(getattr(devmem, "gpu_data", devmem), "owner", None)
        memory = getattr(owner, "madl_memory", owner)
        if not isinstance(memory, Memory) or not memory.nbytes:
            return ask_driver(devmem)
        return memory.address, memory.address + memory.nbytes

    return device_extents


if not TYPE_CHECKING:  # to a type checker, such a function makes every name right

    def __getattr__(name: str) -> object:
        """Return the memory manager under the name that Numba looks it up by."""
        if name == "_numba_memory_manager":
            return _manager_class()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
