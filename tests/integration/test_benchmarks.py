"""The benchmarks run; whether what they promise holds is for ``tox -e gates``."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_benchmark_prints_its_table() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "import_time", "--quick", "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "| import madl" in run.stdout, run.stderr
