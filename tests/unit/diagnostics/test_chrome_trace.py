"""Traces for Perfetto: counters by tag, and the markers."""

import json
from pathlib import Path
from typing import Any

import pytest

from madl.diagnostics import chrome_trace, example_path, open_trace
from madl.diagnostics.chrome_trace import export_chrome_trace
from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.trace import Trace


def exported(trace: Trace, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    export_chrome_trace(trace, path)
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def small_trace() -> Trace:
    builder = TraceBuilder()
    builder.allocate(100, tag="weights")
    builder.mark("step 1")
    builder.allocate(7)
    builder.free(0)
    return builder.finish("small")


def test_counters_follow_the_live_bytes_of_each_tag(tmp_path: Path) -> None:
    events = exported(small_trace(), tmp_path)["traceEvents"]

    assert events[0] == {
        "ph": "M",
        "pid": 1,
        "tid": 0,
        "name": "process_name",
        "args": {"name": "madl: small"},
    }
    assert [(e["ts"], e["args"]) for e in events if e["ph"] == "C"] == [
        (0, {"(no tag)": 0, "weights": 0}),
        (1, {"(no tag)": 0, "weights": 100}),
        (2, {"(no tag)": 7, "weights": 100}),
        (3, {"(no tag)": 7, "weights": 0}),
    ]
    assert [(e["ts"], e["name"]) for e in events if e["ph"] == "i"] == [(1, "step 1")]


def test_a_long_trace_is_sampled_and_its_peak_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_trace, "MOST_SAMPLES", 100)
    trace = open_trace(example_path("resnet50-train"))

    content = exported(trace, tmp_path)

    counters = [e for e in content["traceEvents"] if e["ph"] == "C"]
    assert 100 <= len(counters) <= 105
    peak = max(sum(e["args"].values()) for e in counters)
    assert peak == trace.peak_live_nbytes == content["otherData"]["peak_live_nbytes"]
    assert content["otherData"]["events_per_sample"] == len(trace) // 100


def test_the_smallest_tags_are_shown_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_trace, "MOST_TAGS", 2)
    builder = TraceBuilder()
    for nbytes in range(1, 6):
        builder.allocate(nbytes, tag=f"t{nbytes}")

    events = exported(builder.finish("tags"), tmp_path)["traceEvents"]

    assert events[-1]["args"] == {"(other tags)": 6, "t4": 4, "t5": 5}


def test_every_event_has_what_the_format_asks_for(tmp_path: Path) -> None:
    content = exported(small_trace(), tmp_path)

    assert content["displayTimeUnit"] == "ms"
    for event in content["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "i" or event["s"] == "g"
