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
    @property
    def hookimpl(self) -> object:
        """The marker of a plugin's hooks; pluggy is imported for it, and not before."""
        from madl.backends.hookspecs import hookimpl

        return hookimpl

    def __call__(self) -> tuple[str, ...]:
        """Return the kinds of devices that some backend claims, without opening any."""
        from madl.backends import registry

        return registry.kinds()


sys.modules[__name__].__class__ = _Backends
