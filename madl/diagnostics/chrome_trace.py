"""Export a trace as Chrome trace JSON, for https://ui.perfetto.dev, chrome://tracing.

A counter shows live bytes by tag, and instants the markers. Traces have no time, so an
event takes a microsecond.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from madl.diagnostics.traces.trace import Trace
from madl.diagnostics.traces.writer import write_whole
from madl.errors.report import NO_TAG

MOST_SAMPLES = 50_000
"""Of the counter, besides the peak: browsers get slow with more."""
MOST_TAGS = 20
"""With the most bytes at the peak; the others are one."""
OTHERS = "(other tags)"


def export_chrome_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as Chrome trace JSON; an existing file is replaced.

    Raises:
        OSError: The file cannot be written; what was there is as before.
    """
    step = max(len(trace) // MOST_SAMPLES, 1)
    process = {"ph": "M", "pid": 1, "tid": 0}
    events = [
        process | {"name": "process_name", "args": {"name": f"madl: {trace.name}"}},
        *_counters(trace, step),
        *(
            {"ph": "i", "s": "g", "name": label, "pid": 1, "tid": 0, "ts": position}
            for position, label in trace.markers
        ),
    ]
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "trace": trace.name,
            "events": len(trace),
            "events_per_sample": step,
            "peak_live_nbytes": trace.peak_live_nbytes,
            "time": "an event takes a microsecond",
        },
    }
    write_whole(path, json.dumps(content).encode())


def _counters(trace: Trace, step: int) -> Iterator[dict[str, Any]]:
    names = _names(trace)
    live = dict.fromkeys(names.values(), 0)
    shown = {*range(0, len(trace) + 1, step), trace.peak_position, len(trace)}
    sample = {"ph": "C", "name": "live bytes", "pid": 1, "tid": 0}
    yield sample | {"ts": 0, "args": dict(live)}
    for done, (tag, change) in enumerate(_changes(trace), 1):
        live[names[tag]] += change
        if done in shown:
            yield sample | {"ts": done, "args": dict(live)}


def _names(trace: Trace) -> dict[str | None, str]:
    """Return what each of the trace's tags is shown as."""
    at_peak: Counter[str | None] = Counter()
    for tag, change in islice(_changes(trace), trace.peak_position):
        at_peak[tag] += change
    kept = {tag for tag, _ in at_peak.most_common(MOST_TAGS)}
    if len(trace.tags) <= MOST_TAGS:
        kept.update(trace.tags)
    return {tag: (tag or NO_TAG) if tag in kept else OTHERS for tag in trace.tags}


def _changes(trace: Trace) -> Iterator[tuple[str | None, int]]:
    """Yield the tag of each operation, and by how much it changes the live bytes."""
    for operation in trace.operations:
        if operation < 0:
            yield trace.tag(~operation), -trace.nbytes_of[~operation]
        else:
            yield trace.tag(operation), trace.nbytes_of[operation]
