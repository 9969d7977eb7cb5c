"""Traces to test with: short ones from their lines, and those of recorded runs."""

import json
from pathlib import Path

import pytest

from madl.diagnostics import read_trace
from madl.diagnostics.traces.trace import Trace

SHARED = Path(__file__).parents[2] / "shared"
RECORDED = SHARED / "traces"
_MANIFEST = RECORDED / "manifest.json"
MANIFEST: dict[str, dict[str, int | str]] = (
    json.loads(_MANIFEST.read_text("utf-8"))["traces"] if _MANIFEST.exists() else {}
)
"""What is known of each recorded run, by its name; empty where they are not."""

needs_recorded = pytest.mark.skipif(
    not MANIFEST, reason=f"the recorded traces are not at {RECORDED}"
)


def path_of(name: str) -> Path:
    """Return the file of a recorded run."""
    return RECORDED / f"{name}.trace.gz"


def trace(*records: str) -> Trace:
    """Return the trace of some lines, without a header."""
    return read_trace("\n".join(["# madl-trace v1", *records, ""]).encode())
