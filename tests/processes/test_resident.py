"""Memory that is really taken from the machine, as the kernel counts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from madl.diagnostics import example_path
from tests.traces import path_of

if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

DATALOADER = path_of("c_dataloader")
SLACK_NBYTES = 8 << 20

PROGRAM = """
import json, sys
import madl
from madl.diagnostics import open_trace
from madl.diagnostics.replay import replay

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

trace = open_trace(sys.argv[1])
# What Python itself takes for the loop is taken before, and what it frees is kept.
replay(trace, madl.Pool("sim"))
pool = madl.Pool("cpu")
start = resident()
most = 0

def look(events):
    global most
    most = max(most, resident() - start)

result = replay(trace, pool, touch=True, on_progress=look)
pool.close()
print(json.dumps({
    "most": most,
    "at end": resident() - start,
    "committed": result.peak_committed_nbytes,
    "live": result.peak_live_nbytes,
}))
"""


def measured(path: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            DATALOADER,
            marks=pytest.mark.skipif(
                not DATALOADER.exists(), reason=f"there is no {DATALOADER}"
            ),
        ),
        example_path("resnet50-train"),
    ],
    ids=["c_dataloader", "resnet50-train"],
)
def test_no_more_is_resident_than_is_committed_and_nothing_after_close(
    path: Path,
) -> None:
    figures = measured(path)

    assert figures["most"] <= figures["committed"] + SLACK_NBYTES
    assert figures["most"] >= figures["live"] // 2, "it was touched"
    assert abs(figures["at end"]) <= SLACK_NBYTES
