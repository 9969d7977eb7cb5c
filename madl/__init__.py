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

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from madl.backends.protocol import Capability as Capability
    from madl.backends.registry import devices as devices
    from madl.diagnostics.leaks import Outstanding as Outstanding
    from madl.diagnostics.leaks import leak_check as leak_check
    from madl.diagnostics.leaks import outstanding as outstanding
    from madl.diagnostics.recording import record as record
    from madl.diagnostics.stacks import debug as debug
    from madl.diagnostics.stacks import keep_stacks as keep_stacks
    from madl.diagnostics.tags import tag as tag
    from madl.diagnostics.tracemalloc import show_in_tracemalloc as show_in_tracemalloc
    from madl.errors import AttachError as AttachError
    from madl.errors import BackendCallError as BackendCallError
    from madl.errors import BackendError as BackendError
    from madl.errors import BackendNotFoundError as BackendNotFoundError
    from madl.errors import ConfigurationError as ConfigurationError
    from madl.errors import CorruptedPoolError as CorruptedPoolError
    from madl.errors import FileFormatError as FileFormatError
    from madl.errors import ForkError as ForkError
    from madl.errors import FreedMemoryError as FreedMemoryError
    from madl.errors import LeakError as LeakError
    from madl.errors import MadlError as MadlError
    from madl.errors import MemoryCorruptionError as MemoryCorruptionError
    from madl.errors import MissingCapabilityError as MissingCapabilityError
    from madl.errors import NotContiguousError as NotContiguousError
    from madl.errors import OutOfMemoryError as OutOfMemoryError
    from madl.errors import OutOfMemoryReport as OutOfMemoryReport
    from madl.errors import UnknownBlockError as UnknownBlockError
    from madl.hotpath import Memory as Memory
    from madl.integrations.arrays import empty as empty
    from madl.integrations.arrays import empty_like as empty_like
    from madl.integrations.arrays import full as full
    from madl.integrations.arrays import zeros as zeros
    from madl.integrations.shared import share as share
    from madl.pool import Pool as Pool
    from madl.pool import copy as copy
    from madl.pool.default import allocate as allocate
    from madl.pool.default import default_pool as default_pool
    from madl.pool.default import limit_device as limit_device
    from madl.pool.default import trim as trim
    from madl.pool.default import use_pool as use_pool
    from madl.pool.limits import SoftLimitWarning as SoftLimitWarning
    from madl.pool.stats import PoolSnapshot as PoolSnapshot
    from madl.pool.stats import PoolStats as PoolStats
    from madl.pool.stats import TagStats as TagStats
    from madl.settings import LateSettingWarning as LateSettingWarning
    from madl.settings import SettingState as SettingState
    from madl.settings import configuration as configuration
    from madl.settings import configure as configure
    from madl.spilling import Spillable as Spillable

    __all__: list[str]
    __version__: str

    def backends() -> tuple[str, ...]:
        """Return the kinds of devices that some backend claims."""


# Modules are imported when one of their names is first used, so that a program which
# imports madl and allocates nothing pays for nothing.
_HOMES = {
    "madl.backends.protocol": "Capability",
    "madl.backends.registry": "devices",
    "madl.diagnostics.leaks": "Outstanding leak_check outstanding",
    "madl.diagnostics.recording": "record",
    "madl.diagnostics.stacks": "debug keep_stacks",
    "madl.diagnostics.tags": "tag",
    "madl.diagnostics.tracemalloc": "show_in_tracemalloc",
    "madl.errors": "AttachError BackendCallError BackendError BackendNotFoundError "
    "ConfigurationError CorruptedPoolError FileFormatError ForkError "
    "FreedMemoryError LeakError MadlError MemoryCorruptionError "
    "MissingCapabilityError NotContiguousError OutOfMemoryError OutOfMemoryReport "
    "UnknownBlockError",
    "madl.hotpath": "Memory",
    "madl.integrations.arrays": "empty empty_like full zeros",
    "madl.integrations.shared": "share",
    "madl.pool": "Pool copy",
    "madl.pool.default": "allocate default_pool limit_device trim use_pool",
    "madl.pool.limits": "SoftLimitWarning",
    "madl.pool.stats": "PoolSnapshot PoolStats TagStats",
    "madl.settings": "LateSettingWarning SettingState configuration configure",
    "madl.spilling": "Spillable",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def _find(name: str) -> Any:  # noqa: ANN401  # any of the names above
    """Return a name that is used for the first time, and keep it."""
    if name in _HOME_OF:
        found = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = found
        return found
    if name == "backends" or name in _FORMER:
        return import_module(f"madl.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("madl")
    raise AttributeError(f"module 'madl' has no attribute {name!r}")


class _Former(ModuleType):
    """A module under the name that earlier reference pages and pickles have for it."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any of the other's
        return getattr(
            import_module(_FORMER[self.__name__.removeprefix("madl.")]), name
        )


_FORMER = {
    "damage": "madl.errors.damage",
    "shortage": "madl.errors.report",
    "snapshot": "madl.pool.stats",
    "stats": "madl.pool.stats",
}
for _name in _FORMER:
    sys.modules[f"madl.{_name}"] = _Former(f"madl.{_name}")

if not TYPE_CHECKING:  # to a type checker, such a function makes every name right
    __getattr__ = _find
    __all__ = sorted([*_HOME_OF, "backends"])


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
