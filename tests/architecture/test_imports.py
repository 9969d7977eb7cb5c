"""What importing madl costs, and that no module needs another to come first."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.architecture.modules import MODULES
from tests.programs import run

HEAVY = {"click", "cuda", "dask", "numpy", "pyopencl", "rich", "torch"}


def import_alone(module: str) -> str:
    """Return the last line of the error that importing only this module gives."""
    status, _, errors = run(f"import {module}")
    return errors.strip().rpartition("\n")[2] if status else ""


def test_each_module_imports_alone() -> None:
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        errors = dict(zip(MODULES, executor.map(import_alone, MODULES), strict=True))

    assert {module: error for module, error in errors.items() if error} == {}


def test_import_madl_loads_nothing_heavy() -> None:
    loaded = set(run("import madl, sys; print(*sys.modules)")[1].split())

    assert loaded & {"madl", *HEAVY} == {"madl"}


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox makes a wheel")
def test_tox_tests_the_installed_wheel() -> None:
    _, path, _ = run("import madl; print(madl.__file__)")

    assert "site-packages" in path
