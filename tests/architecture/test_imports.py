"""What importing madl costs, and that no module needs another to come first."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.architecture.modules import MODULES

HEAVY = {"click", "cuda", "dask", "numpy", "pyopencl", "rich", "torch"}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process. With ``-P`` the checkout hides no installed madl."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )


def import_alone(module: str) -> str:
    """Return the last line of the error that importing only this module gives."""
    done = run_python(f"import {module}")
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def test_each_module_imports_alone() -> None:
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        errors = dict(zip(MODULES, executor.map(import_alone, MODULES), strict=True))

    assert {module: error for module, error in errors.items() if error} == {}


def test_import_madl_loads_nothing_heavy() -> None:
    loaded = set(run_python("import madl, sys; print(*sys.modules)").stdout.split())

    assert loaded & {"madl", *HEAVY} == {"madl"}


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox makes a wheel")
def test_tox_tests_the_installed_wheel() -> None:
    done = run_python("import madl; print(madl.__file__)")

    assert "site-packages" in done.stdout
