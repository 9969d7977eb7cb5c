"""Everything that reads files which anyone may have written, as one call each.

A reader returns, or raises a ``MadlError`` whose text can be printed; anything else
that comes out of it is a bug. ``corpus/NAME`` has files that it once took each way of
its code with, and every file that was a bug.
"""

from collections.abc import Callable
from pathlib import Path

from madl.diagnostics import load_snapshot, open_trace, read_trace
from madl.diagnostics.diff import contents_of_snapshot, contents_of_trace, diff
from madl.diagnostics.histories import open_history
from madl.diagnostics.replay import replay
from madl.diagnostics.runs.page import page_data
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from madl.diagnostics.traces.reader import open_trace_or_snapshot
from madl.diagnostics.traces.trace import Trace
from madl.diagnostics.whatif_report import what_if
from madl.errors import MadlError
from madl.pool import Pool

CORPUS = Path(__file__).parent / "corpus"


def _replay(data: bytes) -> None:
    trace = open_trace(data)
    with Pool("sim") as pool:
        replay(trace, pool)


def _diff(data: bytes) -> None:
    opened = open_trace_or_snapshot(data)
    contents = (
        contents_of_trace(opened)
        if isinstance(opened, Trace)
        else contents_of_snapshot(opened)
    )
    diff(contents, contents)


def _report(data: bytes) -> None:
    page_data(open_history(data))


READERS: dict[str, Callable[[bytes], object]] = {
    "trace": read_trace,
    "any-trace": open_trace,
    "journal": open_trace,
    "snapshot": load_snapshot,
    "torch": read_torch_snapshot,
    "report": _report,
    "whatif": what_if,
    "replay": _replay,
    "diff": _diff,
}


def read(name: str, data: bytes) -> bool:
    """Let a reader have some data; return whether it took it, if it did no wrong."""
    try:
        READERS[name](data)
    except MadlError as error:
        str(error).encode()  # fit to be printed anywhere
        return False
    return True
