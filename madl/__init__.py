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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from madl.backends.protocol import Capability
    from madl.diagnostics.leaks import Outstanding, leak_check, outstanding
    from madl.diagnostics.recording import record
    from madl.diagnostics.stacks import debug, keep_stacks
    from madl.diagnostics.tags import tag
    from madl.diagnostics.tracemalloc import show_in_tracemalloc
    from madl.errors import (
        AttachError,
        BackendCallError,
        BackendError,
        BackendNotFoundError,
        ConfigurationError,
        CorruptedPoolError,
        FileFormatError,
        ForkError,
        FreedMemoryError,
        LeakError,
        MadlError,
        MemoryCorruptionError,
        MissingCapabilityError,
        NotContiguousError,
        OutOfMemoryError,
        OutOfMemoryReport,
        UnknownBlockError,
    )
    from madl.hotpath import Memory
    from madl.integrations.arrays import empty, empty_like, full, zeros
    from madl.integrations.shared import share
    from madl.pool import Pool, copy
    from madl.pool.default import (
        allocate,
        default_pool,
        devices,
        limit_device,
        trim,
        use_pool,
    )
    from madl.pool.limits import SoftLimitWarning
    from madl.pool.stats import PoolSnapshot, PoolStats, TagStats
    from madl.settings import (
        LateSettingWarning,
        SettingState,
        configuration,
        configure,
    )
    from madl.spilling import Spillable

    __version__: str

    def backends() -> tuple[str, ...]:
        """Return the kinds of devices that some backend claims."""


# Modules are imported when one of their names is first used, so that a program which
# imports madl and allocates nothing pays for nothing.
_HOMES = {
    "madl.backends.protocol": ("Capability",),
    "madl.pool.default": (
        "allocate",
        "default_pool",
        "devices",
        "limit_device",
        "trim",
        "use_pool",
    ),
    "madl.diagnostics.leaks": ("Outstanding", "leak_check", "outstanding"),
    "madl.diagnostics.recording": ("record",),
    "madl.diagnostics.stacks": ("debug", "keep_stacks"),
    "madl.diagnostics.tags": ("tag",),
    "madl.diagnostics.tracemalloc": ("show_in_tracemalloc",),
    "madl.errors": (
        "AttachError",
        "BackendCallError",
        "BackendError",
        "BackendNotFoundError",
        "ConfigurationError",
        "CorruptedPoolError",
        "FileFormatError",
        "ForkError",
        "FreedMemoryError",
        "LeakError",
        "MadlError",
        "MemoryCorruptionError",
        "MissingCapabilityError",
        "NotContiguousError",
        "OutOfMemoryError",
        "OutOfMemoryReport",
        "UnknownBlockError",
    ),
    "madl.hotpath": ("Memory",),
    "madl.integrations.arrays": ("empty", "empty_like", "full", "zeros"),
    "madl.integrations.shared": ("share",),
    "madl.pool": ("Pool", "copy"),
    "madl.settings": (
        "LateSettingWarning",
        "SettingState",
        "configuration",
        "configure",
    ),
    "madl.pool.stats": ("PoolSnapshot", "PoolStats", "TagStats"),
    "madl.pool.limits": ("SoftLimitWarning",),
    "madl.spilling": ("Spillable",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AttachError",
    "BackendCallError",
    "BackendError",
    "BackendNotFoundError",
    "Capability",
    "ConfigurationError",
    "CorruptedPoolError",
    "FileFormatError",
    "ForkError",
    "FreedMemoryError",
    "LateSettingWarning",
    "LeakError",
    "MadlError",
    "Memory",
    "MemoryCorruptionError",
    "MissingCapabilityError",
    "NotContiguousError",
    "OutOfMemoryError",
    "OutOfMemoryReport",
    "Outstanding",
    "Pool",
    "PoolSnapshot",
    "PoolStats",
    "SettingState",
    "SoftLimitWarning",
    "Spillable",
    "TagStats",
    "UnknownBlockError",
    "allocate",
    "backends",
    "configuration",
    "configure",
    "copy",
    "debug",
    "default_pool",
    "devices",
    "empty",
    "empty_like",
    "full",
    "keep_stacks",
    "leak_check",
    "limit_device",
    "outstanding",
    "record",
    "share",
    "show_in_tracemalloc",
    "tag",
    "trim",
    "use_pool",
    "zeros",
]


def _find(name: str) -> Any:  # noqa: ANN401  # any of the names above
    """Return a name that is used for the first time, and keep it."""
    if name in _HOME_OF:
        found = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = found
        return found
    if name == "backends":
        return import_module("madl.backends")
    if name == "__version__":
        from importlib.metadata import version

        return version("madl")
    raise AttributeError(f"module 'madl' has no attribute {name!r}")


if not TYPE_CHECKING:  # to a type checker, such a function makes every name right
    __getattr__ = _find


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
