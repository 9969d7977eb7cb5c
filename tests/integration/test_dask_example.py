"""The example of Dask, and the code of its page, run as they are printed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.programs import run_as_file

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs Dask: pip install 'madl[dask]'", allow_module_level=True)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dask" / "pools.py"
PAGE = ROOT / "docs" / "how-to" / "dask.md"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="tests run without the examples")
def test_the_example_prints_its_sum_and_the_table() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sum of means: 45.0\n")
    assert re.search(r"127\.0\.0\.1:\d+ +cpu .* 256\.0 MiB ", done.stdout)


@pytest.mark.skipif(not PAGE.exists(), reason="tests run without the documentation")
def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    assert len(blocks) == 2
    for block in blocks:
        done = run_as_file(block)
        assert done.returncode == 0, done.stderr
