"""Backends: one device API each, behind one protocol. Called, the kinds of devices.

``madl.backends()`` and ``madl.backends.hookimpl`` are both public, so the package is
a module that can be called.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from madl.backends.hookspecs import hookimpl

__all__ = ["hookimpl"]


class _Backends(ModuleType):
    def __call__(self) -> tuple[str, ...]:
        """Return the kinds of devices that some backend claims, without opening any."""
        from madl.backends import registry

        return registry.kinds()


sys.modules[__name__].__class__ = _Backends


def _find(name: str) -> object:
    if name == "hookimpl":
        from madl.backends.hookspecs import hookimpl

        return hookimpl
    raise AttributeError(f"module 'madl.backends' has no attribute {name!r}")


if not TYPE_CHECKING:  # to a type checker, such a function makes every name right
    __getattr__ = _find
