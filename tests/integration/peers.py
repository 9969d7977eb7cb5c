"""Other libraries that tests work with: skipped where absent, unless required."""

import importlib
import os
import subprocess
import sys
from types import ModuleType

import pytest

from madl.testing.case import required_kinds

EXITS = int(os.environ.get("MADL_EXITS", "3"))
"""How often a program has to end in silence."""


def peer_or_skip(name: str) -> ModuleType:
    """Return a library; skip the file, or fail it where the ecosystem is required."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "ecosystem" in required_kinds():
            raise
        pytest.skip(f"{name} is not installed: {error}", allow_module_level=True)


def endings(program: str, **environment: str) -> set[tuple[int, str, str]]:
    """Return how a program ends, run again and again: its exit code and output."""
    return {run(program, **environment) for _ in range(EXITS)}


def run(program: str, **environment: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a new process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],  # no checkout hides what is installed
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
