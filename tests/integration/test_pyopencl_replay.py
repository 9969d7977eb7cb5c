"""Recorded traces over OpenCL: what a pool takes there, and that bytes stay."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from madl import Pool
from madl.backends.opencl import OpenclBackend
from madl.backends.sim import SimBackend
from madl.diagnostics import Trace, example_names, example_path, open_trace
from madl.diagnostics.replay import replay
from madl.diagnostics.runs.verify import verify
from tests.backends.opencl.device import pyopencl_or_skip
from tests.traces import MANIFEST, needs_recorded, path_of

pyopencl_or_skip()
pytestmark = pytest.mark.opencl

GEOMEAN = 1.12
MOST_WRITTEN_NBYTES = 256 << 20


def start_of(trace: Trace, nbytes: int) -> Trace:
    """Return as much of a trace as allocates so many bytes."""
    allocations = written = stop = 0
    for operation in trace.operations:
        if operation >= 0:
            written += trace.nbytes_of[operation]
            if written > nbytes:
                break
            allocations += 1
        stop += 1
    return Trace(trace.name, {}, trace.operations[:stop], trace.nbytes_of[:allocations])


@pytest.mark.parametrize("name", example_names())
def test_an_example_takes_what_it_takes_of_a_simulation_without_commits(
    name: str,
) -> None:
    trace = start_of(open_trace(example_path(name)), 16 << 30)

    with Pool("opencl:0") as pool, Pool(SimBackend(commits=False)) as model:
        real, simulated = replay(trace, pool), replay(trace, model)

    assert real.peak_live_nbytes == trace.peak_live_nbytes
    assert real.committed_over_live == simulated.committed_over_live
    assert real.stats.backend_calls == simulated.stats.backend_calls


@pytest.mark.slow
@needs_recorded
def test_the_traces_take_little_more_than_they_need() -> None:
    ratios = []
    for name, known in MANIFEST.items():
        with Pool("opencl:0") as pool:
            result = replay(open_trace(path_of(name)), pool)
        assert result.peak_live_nbytes == known["peak_live_bytes"]
        ratios.append(result.committed_over_live)

    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= GEOMEAN


@pytest.mark.parametrize("memory", ["buffer", "fine", "coarse"])
def test_what_is_written_to_the_blocks_of_a_trace_is_read_back(memory: str) -> None:
    trace = start_of(open_trace(example_path("vit-train")), MOST_WRITTEN_NBYTES)

    with Pool(OpenclBackend(memory=memory)) as pool:
        verified = verify(trace, pool)
        pool.check()

    assert verified.blocks == trace.allocations > 100
    assert verified.nbytes > MOST_WRITTEN_NBYTES // 2


def test_the_command_replays_on_the_device_and_reads_all_back(tmp_path: Path) -> None:
    trace = tmp_path / "small.trace"
    trace.write_text("# madl-trace v1\na,0,3000000\na,1,100\nf,0\na,2,70000\nf,1\n")

    done = subprocess.run(
        [
            *(sys.executable, "-m", "madl", "replay", trace),
            *("--device", "opencl:0", "--touch", "--verify", "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    figures = json.loads(done.stdout)
    assert figures["device"] == "opencl:0"
    assert figures["verified_nbytes"] == 3070100
    assert figures["peak_committed_nbytes"] == 4 << 20
