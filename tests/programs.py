"""Programs in processes of their own, away from the checkout."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXITS = int(os.environ.get("TEST_MADL_EXITS", "3"))
"""How often a program has to end in silence."""


def run(program: str, **environment: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a program."""
    done = _python("-c", program, environment=environment)
    return done.returncode, done.stdout, done.stderr


def endings(program: str, **environment: str) -> set[tuple[int, str, str]]:
    """Return how a program ends, run again and again: its exit code and output."""
    return {run(program, **environment) for _ in range(EXITS)}


def output_of(*program: str | Path) -> str:
    """Return what a program prints; it has to end well, and in silence otherwise."""
    done = _python(*program)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def run_as_file(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code as a main module that the processes which it starts can import."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(code, "utf-8")
        return _python(path, *arguments)


def _python(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *arguments],  # no checkout hides what is installed
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
