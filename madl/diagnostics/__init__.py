"""Allocation traces and snapshots: read, written, replayed, drawn, compared."""

from madl.diagnostics.snapshot_json import load_snapshot, save_snapshot
from madl.diagnostics.traces.lines import TraceSource
from madl.diagnostics.traces.reader import (
    example_names,
    example_path,
    open_trace,
    read_trace,
)
from madl.diagnostics.traces.trace import Allocate, Event, Free, Marker, Trace
from madl.diagnostics.traces.writer import TraceWriter, write_trace

__all__ = [
    "Allocate",
    "Event",
    "Free",
    "Marker",
    "Trace",
    "TraceSource",
    "TraceWriter",
    "example_names",
    "example_path",
    "load_snapshot",
    "open_trace",
    "read_trace",
    "save_snapshot",
    "write_trace",
]
