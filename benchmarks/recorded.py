"""The recorded traces: those of the project, or the three that ship."""

from functools import cache
from pathlib import Path

from benchmarks import ROOT
from madl.diagnostics import example_names, example_path, open_trace
from madl.diagnostics.traces.trace import Trace

FOLDER = ROOT.parent / "shared" / "traces"
SMALL_BLOCK = ("c_llama_gen", "c_dataloader")
"""Host traces of many small blocks, where every allocator of the C library is quick."""


@cache
def paths() -> dict[str, Path]:
    """Return the traces' files by name."""
    if found := sorted(FOLDER.glob("*.trace.gz")):
        return {path.name.removesuffix(".trace.gz"): path for path in found}
    return {name: example_path(name) for name in example_names()}


FEW_EVENTS = 150_000


def quick_names() -> list[str]:
    """Return the traces that a gate is about; of large blocks those that are short.

    All of them where none is recorded.
    """
    return [
        name
        for name in paths()
        if name in SMALL_BLOCK or (not is_host(name) and len(trace(name)) <= FEW_EVENTS)
    ] or [*paths()]


@cache
def trace(name: str) -> Trace:
    """Return a trace."""
    return open_trace(paths()[name])


def is_host(name: str) -> bool:
    """Whether a trace is of a host program, not of one of GPU scale."""
    return not name.startswith("m_")


def note() -> str:
    """Return which traces were replayed."""
    if FOLDER.exists():
        return f"{len(paths())} recorded traces of {FOLDER}."
    return f"The traces that ship with madl; the recorded ones are not at {FOLDER}."
