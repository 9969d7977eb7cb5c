"""The reader against real traces, and what it needs for a large one."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from madl.diagnostics import example_names, example_path, open_trace
from tests.traces import MANIFEST, SHARED, needs_recorded, path_of

INPUTS = sorted((SHARED / "inputs").glob("*/*.csv"))

# Not ru_maxrss: a process inherits that from the one that started it.
MEASURE = """
import re, sys
from pathlib import Path
from madl.diagnostics import open_trace
def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
before = peak()
trace = open_trace(sys.argv[1])
print(len(trace), (peak() - before) * 1024)
"""


@needs_recorded
@pytest.mark.parametrize("name", MANIFEST)
def test_a_recorded_trace_is_as_its_manifest_says(name: str) -> None:
    expected = MANIFEST[name]

    trace = open_trace(path_of(name))

    assert trace.name == name
    assert len(trace) == expected["events"]
    assert trace.allocations == expected["allocs"]
    assert trace.frees == expected["frees"]
    assert len(trace.markers) == expected["markers"]
    assert trace.peak_live_nbytes == expected["peak_live_bytes"]


@pytest.mark.skipif(not INPUTS, reason="../shared/inputs is not here")
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
def test_a_planner_input_has_two_events_a_row(path: Path) -> None:
    rows = [line.split(",") for line in path.read_text().split()[1:]]
    lives = [(int(lower), int(upper), int(size)) for _, lower, upper, size in rows]

    trace = open_trace(path)

    assert (trace.allocations, trace.frees) == (len(rows), len(rows))
    assert trace.peak_live_nbytes == max(
        sum(size for lower, upper, size in lives if lower <= time < upper)
        for time, _, _ in lives
    )


@pytest.mark.parametrize("name", example_names())
def test_an_example_is_whole(name: str) -> None:
    trace = open_trace(example_path(name))

    assert trace.allocations == int(trace.headers["allocs"])
    assert trace.frees == int(trace.headers["frees"])
    assert trace.peak_live_nbytes == int(trace.headers["peak_live_bytes"])


def test_an_unknown_example_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
        example_path("../gpt2-train")

    assert str(caught.value) == (
        "example must be one of gpt2-train, resnet50-train, vit-train, "
        "got '../gpt2-train'"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_half_a_million_events_need_less_than_200_mb(tmp_path: Path) -> None:
    path = tmp_path / "large.trace.gz"
    lines = (f"a,{i},{i * 4096},{i % 3},layer {i % 500}\n" for i in range(500_000))
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(["# madl-trace v1\n", *lines])

    printed = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    events, nbytes = map(int, printed.split())
    assert events == 500_000
    assert nbytes < 200_000_000
