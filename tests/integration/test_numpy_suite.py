"""NumPy's own tests pass over a pool: one file of them here, more in a nox session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("madl.native.numpy_handler")
pytest.importorskip("numpy._core.tests", reason="this NumPy came without its tests")

FOLDER = Path(__file__).parents[1] / "numpy_suite"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_numeric_tests_of_numpy_pass_over_a_pool() -> None:
    options = ["-q", f"--config-file={FOLDER / 'pytest.ini'}", "-p", "madl_route"]
    tests = ["-m", "not slow", "--pyargs", "numpy._core.tests.test_numeric"]

    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, *tests],
        env={**os.environ, "PYTHONPATH": str(FOLDER), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "allocations of the pool" in done.stdout
