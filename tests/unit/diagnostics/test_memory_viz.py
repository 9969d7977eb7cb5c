"""What is exported for PyTorch's viewer keeps the rules that it has."""

import importlib.util
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from madl import Pool
from madl.diagnostics import example_path, open_trace
from madl.diagnostics.memory_viz import export_snapshot, export_trace
from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.trace import Trace
from madl.stacks import Line

SAFE_OPCODES = {
    "PROTO",
    "FRAME",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "EMPTY_TUPLE",
    "MARK",
    "MEMOIZE",
    "BINGET",
    "LONG_BINGET",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "NEWFALSE",
    "NEWTRUE",
    "NONE",
    "TUPLE2",
    "SETITEM",
    "SETITEMS",
    "APPEND",
    "APPENDS",
    "STOP",
}


def small_trace() -> Trace:
    builder = TraceBuilder()
    stack = (Line("train.py", 12, "forward"),)
    builder.allocate(3 << 20, tag="weights", stack=stack)
    builder.allocate(0)
    builder.allocate(100, stream=2)
    builder.free(1)
    builder.free(0)
    builder.allocate(5000, tag="weights")
    return builder.finish("small")


@pytest.fixture(params=["trace", "example", "snapshot", "snapshot without addresses"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "madl.pickle"
    if request.param == "trace":
        export_trace(small_trace(), path)
    elif request.param == "example":
        export_trace(open_trace(example_path("resnet50-train")), path)
    else:
        device = "sim" if "without" in request.param else "cpu"
        with Pool(device, page_size="64 KiB") as pool:
            held = [pool.allocate(1000 * n, tag=f"t{n}") for n in range(1, 60)]
            del held[::3]
            held[-1].free()
            pool.trim()
            export_snapshot(pool.snapshot(), path)
            held.clear()
    return path


def loaded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = pickle.loads(path.read_bytes())
    return content


def test_the_pickle_has_plain_containers_of_protocol_4(path: Path) -> None:
    content = path.read_bytes()

    assert content[:2] == b"\x80\x04"
    assert {code.name for code, _, _ in pickletools.genops(content)} <= SAFE_OPCODES


def test_blocks_tile_their_segments_and_sums_add_up(path: Path) -> None:
    segments = loaded(path)["segments"]

    assert segments
    for segment in segments:
        at = segment["address"]
        live = 0
        for block in segment["blocks"]:
            assert block["address"] == at
            assert block["state"] in ("active_allocated", "inactive")
            at += block["size"]
            live += block["size"] * (block["state"] == "active_allocated")
        assert at == segment["address"] + segment["total_size"]
        assert live == segment["allocated_size"] == segment["active_size"]


def test_the_events_lead_to_the_final_state(path: Path) -> None:
    content = loaded(path)
    (events,) = content["device_traces"]
    live: dict[int, int] = {}
    segments: dict[int, int] = {}

    for event in events:
        if event["action"] == "segment_alloc":
            segments[event["addr"]] = event["size"]
        elif event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            assert any(
                start <= event["addr"] and event["addr"] + event["size"] <= start + size
                for start, size in segments.items()
            ), "an event outside of every segment"
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]

    assert segments == {s["address"]: s["total_size"] for s in content["segments"]}
    assert live == {
        block["address"]: block["size"]
        for segment in content["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_tags_and_stacks_are_frames(tmp_path: Path) -> None:
    export_trace(small_trace(), tmp_path / "madl.pickle")

    (events,) = loaded(tmp_path / "madl.pickle")["device_traces"]
    first = next(event for event in events if event["action"] == "alloc")
    assert first["frames"] == [
        {"filename": "tag", "line": 0, "name": "weights"},
        {"filename": "train.py", "line": 12, "name": "forward"},
    ]
    assert [e["stream"] for e in events if e["action"] == "alloc"] == [0, 2, 0]


@pytest.mark.parametrize("command", ["stats", "trace", "trace_plot", "segment_plot"])
def test_the_viewer_of_pytorch_reads_it(
    command: str, path: Path, tmp_path: Path
) -> None:
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        pytest.skip("needs PyTorch, whose viewer is a script of its own")
    viewer = Path(torch.submodule_search_locations[0]) / "cuda" / "_memory_viz.py"
    output = ["-o", str(tmp_path / "out.html")] if command.endswith("plot") else []

    run = subprocess.run(
        [sys.executable, str(viewer), command, str(path), *output],
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stderr
    assert "mismatch" not in run.stdout + run.stderr
