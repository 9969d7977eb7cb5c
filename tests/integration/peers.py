"""Other libraries that tests work with: skipped where absent, unless required."""

import importlib
from types import ModuleType

import pytest

from madl.testing.case import required_kinds


def peer_or_skip(name: str) -> ModuleType:
    """Return a library; skip the file, or fail it where the ecosystem is required."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "ecosystem" in required_kinds():
            raise
        pytest.skip(f"{name} is not installed: {error}", allow_module_level=True)
