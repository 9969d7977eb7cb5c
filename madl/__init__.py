"""madl: one memory allocator for host, CUDA and OpenCL memory, in Python.

>>> import madl
>>> with madl.Pool("cpu", limit="64 MiB") as pool:
...     with pool.allocate("1 MiB", tag="demo") as mem:
...         array = mem.as_array("float32", (512, 512))
...         array[:] = 1
...         print(mem.nbytes, float(array.sum()))
...         del array
1048576 262144.0
"""

from madl.backends.protocol import Capability
from madl.defaults import allocate, backends, default_pool, devices, use_pool
from madl.diagnostics.leaks import leak_check
from madl.diagnostics.recording import record
from madl.diagnostics.tags import tag
from madl.errors import (
    BackendCallError,
    BackendError,
    BackendNotFoundError,
    CorruptedPoolError,
    FileFormatError,
    ForkError,
    FreedMemoryError,
    LeakError,
    MadlError,
    MissingCapabilityError,
    NotContiguousError,
    OutOfMemoryError,
    OutOfMemoryReport,
    UnknownBlockError,
)
from madl.hotpath import Memory
from madl.integrations.arrays import empty, empty_like, full, zeros
from madl.memory import copy
from madl.pool import Pool
from madl.snapshot import PoolSnapshot
from madl.stats import PoolStats, TagStats

__all__ = [
    "BackendCallError",
    "BackendError",
    "BackendNotFoundError",
    "Capability",
    "CorruptedPoolError",
    "FileFormatError",
    "ForkError",
    "FreedMemoryError",
    "LeakError",
    "MadlError",
    "Memory",
    "MissingCapabilityError",
    "NotContiguousError",
    "OutOfMemoryError",
    "OutOfMemoryReport",
    "Pool",
    "PoolSnapshot",
    "PoolStats",
    "TagStats",
    "UnknownBlockError",
    "allocate",
    "backends",
    "copy",
    "default_pool",
    "devices",
    "empty",
    "empty_like",
    "full",
    "leak_check",
    "record",
    "tag",
    "use_pool",
    "zeros",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        # On demand: reading the metadata takes longer than importing madl.
        from importlib.metadata import version

        return version("madl")
    raise AttributeError(f"module 'madl' has no attribute {name!r}")
