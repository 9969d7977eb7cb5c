"""Open a trace or a snapshot, whichever a file holds."""

from madl.diagnostics.snapshot_json import is_snapshot, load_snapshot
from madl.diagnostics.traces.lines import TraceSource, head_of
from madl.diagnostics.traces.reader import open_trace
from madl.diagnostics.traces.trace import Trace
from madl.pool.stats import PoolSnapshot

_HEAD_NBYTES = 4096


def open_trace_or_snapshot(source: TraceSource) -> Trace | PoolSnapshot:
    """Return what is in a file: its content tells which it is.

    Raises:
        FileFormatError: It cannot be opened, is neither, or is broken.
    """
    if is_snapshot(head_of(source, _HEAD_NBYTES)):
        return load_snapshot(source)
    return open_trace(source)
