"""What importing madl costs, and that no module needs another to come first."""

import json
import os
from pathlib import Path

import pytest

from tests.architecture.modules import MODULES
from tests.programs import output_of, run

HEAVY = {"click", "cuda", "dask", "numpy", "pyopencl", "rich", "torch"}


IMPORT_EACH = """
import importlib, json, os, sys
import click, numpy, pluggy, rich.table  # of madl itself nothing, so that all is quick

def error_of(module):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            importlib.import_module(module)
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.wait()
    with open(reader) as told:
        return told.read()

errors = {module: error_of(module) for module in sys.argv[1:]}
print(json.dumps({module: error for module, error in errors.items() if error}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process for each takes minutes")
def test_each_module_imports_alone(tmp_path: Path) -> None:
    program = tmp_path / "import_each.py"
    program.write_text(IMPORT_EACH, "utf-8")

    assert json.loads(output_of(program, *MODULES)) == {}


def test_import_madl_loads_nothing_heavy() -> None:
    loaded = set(run("import madl, sys; print(*sys.modules)")[1].split())

    assert loaded & {"madl", *HEAVY} == {"madl"}


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox makes a wheel")
def test_tox_tests_the_installed_wheel() -> None:
    _, path, _ = run("import madl; print(madl.__file__)")

    assert "site-packages" in path
