"""Late imports of other libraries, and what CuPy and Numba arrays have in common."""

import importlib
from types import ModuleType
from typing import Any, cast

from madl.backends.cuda import CudaBackend
from madl.hotpath import Memory
from madl.pool import Pool
from madl.pool.allocate import parts_of


def import_peer(name: str, package: str) -> ModuleType:
    """Import a module; the ImportError names the package to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"{name} cannot be imported: {error}; pip install {package}"
        raise ImportError(reason) from error


def cuda_backend_of(pool: object) -> CudaBackend:
    """Return what a pool of CUDA memory takes it from; else raise a TypeError."""
    backend = parts_of(pool).backend.backend if isinstance(pool, Pool) else None
    if not isinstance(backend, CudaBackend):
        raise TypeError(
            f"pool must be of a CUDA device, got {pool!r}; make one with Pool('cuda:0')"
        )
    return backend


def memory_of(array: Any) -> Memory:  # noqa: ANN401  # of CuPy or of Numba
    """Return the memory that a CUDA array lies in.

    Raises:
        ValueError: It is not from a pool.
    """
    # What holds an array's bytes has its memory: CuPy's block, Numba's pointer.
    if hasattr(array, "gpu_data"):
        holder = getattr(array.gpu_data, "owner", None)
        how = "call madl.integrations.numba.use_pool() before the first CUDA array"
    else:
        holder = array.data.mem
        how = "make it after cupy.cuda.set_allocator(PoolAllocator(pool))"
    memory = getattr(holder, "madl_memory", None)
    if memory is None:
        raise ValueError(
            f"the array of {array.nbytes} bytes has no memory of a madl.Pool; {how}"
        )
    return cast("Memory", memory)


def record_stream(array: Any, stream: object) -> None:  # noqa: ANN401  # as above
    """Say that work queued in another stream uses a CUDA array.

    Call it after that work is queued and before the array is dropped.

    Raises:
        ValueError: The array is not from a pool, or the stream of another device.
    """
    memory_of(array).record_stream(stream)
