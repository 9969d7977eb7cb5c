"""Empty handles: the floor that no allocator called from Python can go below."""

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks import ROOT


class SlotsHandle:
    """A handle in Python that does nothing."""

    __slots__ = ()

    def free(self) -> None:
        """Do nothing."""


class SlotsMaker:
    """What makes such handles."""

    __slots__ = ()

    def allocate(self, nbytes: int) -> SlotsHandle:
        """Return a handle."""
        return SlotsHandle()


def compiled_floor() -> Callable[[int], Any]:
    """Return the ``allocate`` of ``floor.pyx``, compiled now if it was not before.

    Raises:
        ImportError: There is no Cython or no C compiler.
    """
    pyximport = importlib.import_module("pyximport")
    importers = pyximport.install(
        build_dir=str(ROOT / "build" / "bench" / "floor"), language_level=3
    )
    try:
        floor = importlib.import_module("benchmarks.floor")
    finally:
        pyximport.uninstall(*importers)
    allocate: Callable[[int], Any] = floor.Maker().allocate
    return allocate
