"""The libraries that integrations are for, imported when they are needed."""

import importlib
from types import ModuleType

from madl.backends.cuda import CudaBackend
from madl.pool import Pool


def import_peer(name: str, package: str) -> ModuleType:
    """Import a library.

    Args:
        name: Of the module.
        package: What to install for it.

    Raises:
        ImportError: With what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} cannot be imported: {error}; pip install {package}"
        ) from error


def cuda_backend_of(pool: object) -> CudaBackend:
    """Return what a pool of CUDA memory takes it from.

    Raises:
        TypeError: The pool is of another device, or none.
    """
    backend = pool._backend.inner if isinstance(pool, Pool) else None
    if not isinstance(backend, CudaBackend):
        raise TypeError(
            f"pool must be of a CUDA device, got {pool!r}; make one with Pool('cuda:0')"
        )
    return backend
