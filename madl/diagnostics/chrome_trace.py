"""Export a trace as Chrome trace JSON, for https://ui.perfetto.dev, chrome://tracing.

A counter shows live bytes by tag, and instants the markers. Traces have no time, so an
event takes a microsecond.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
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
    live = dict.fromkeys(names, 0)
    shown = {*range(0, len(trace) + 1, step), trace.peak_position, len(trace)}
    yield _sample(0, live)
    for done, operation in enumerate(trace.operations, 1):
        allocation = ~operation if operation < 0 else operation
        name = names[trace.tag_of[allocation]] if trace.tag_of is not None else names[0]
        nbytes = trace.nbytes_of[allocation]
        live[name] += -nbytes if operation < 0 else nbytes
        if done in shown:
            yield _sample(done, live)


def _sample(position: int, live: dict[str, int]) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": "live bytes",
        "pid": 1,
        "tid": 0,
        "ts": position,
        "args": dict(live),
    }


def _names(trace: Trace) -> list[str]:
    """Return what each of the trace's tags is shown as."""
    if trace.tag_of is None:
        return [NO_TAG]
    at_peak = live_by_tag(trace, trace.peak_position)
    kept = {tag for tag, _ in at_peak.most_common(MOST_TAGS)}
    return [
        (tag or NO_TAG) if tag in kept or len(trace.tags) <= MOST_TAGS else OTHERS
        for tag in trace.tags
    ]


def live_by_tag(trace: Trace, position: int) -> Counter[str | None]:
    """Return the bytes of each tag that are live after so many operations."""
    live: Counter[str | None] = Counter()
    for operation in trace.operations[:position]:
        allocation = ~operation if operation < 0 else operation
        tag = None if trace.tag_of is None else trace.tags[trace.tag_of[allocation]]
        nbytes = trace.nbytes_of[allocation]
        live[tag] += -nbytes if operation < 0 else nbytes
    return live
