"""The gates: what no release may fall below, measured on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from madl import hotpath

ROOT = Path(__file__).parents[2]
MINUTES = 10
"""On a busy machine; on a quiet one it takes three."""


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("MADL_BENCH_GATES") != "1",
    reason="takes minutes, and a machine to itself; set MADL_BENCH_GATES=1",
)
@pytest.mark.skipif(not hotpath.IS_COMPILED, reason="gates are for the compiled build")
@pytest.mark.timeout(MINUTES * 60 + 10)
def test_the_gates_hold() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--gates"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=MINUTES * 60,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr


def test_a_benchmark_prints_its_table() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "import_time", "--quick", "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "| import madl" in run.stdout, run.stderr
