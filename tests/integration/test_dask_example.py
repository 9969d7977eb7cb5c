"""The example of Dask, and the code of its page, run as they are printed."""

import importlib.util
import re

import pytest

from tests.pages import EXAMPLES, blocks, needs_examples, needs_pages
from tests.programs import run_as_file

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs Dask: pip install 'madl[dask]'", allow_module_level=True)

pytestmark = pytest.mark.slow


@needs_examples
def test_the_example_prints_its_sum_and_the_table() -> None:
    done = run_as_file((EXAMPLES / "dask" / "pools.py").read_text("utf-8"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sum of means: 45.0\n")
    assert re.search(r"127\.0\.0\.1:\d+ +cpu .* 256\.0 MiB ", done.stdout)


@needs_pages
def test_the_code_of_the_page_runs() -> None:
    for block in blocks("docs/how-to/dask.md"):
        done = run_as_file(block)
        assert done.returncode == 0, done.stderr
