"""The code of the how-to runs as it is printed, and so does the example."""

import gc
import re
from pathlib import Path

import pytest

from tests.backends.opencl.device import pyopencl_or_skip
from tests.integration.ecosystem import EXAMPLES, output_of

pyopencl_or_skip()
pytestmark = pytest.mark.opencl

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pool-for-pyopencl.md"


@pytest.mark.skipif(not PAGE.exists(), reason="tests run without the documentation")
def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}

    for block in blocks:
        exec(block, names)

    assert len(blocks) == 4
    assert capsys.readouterr().out == "8000000\n"
    names.clear()
    gc.collect()


@pytest.mark.skipif(not EXAMPLES.exists(), reason="tests run without the examples")
def test_arrays_of_the_example_come_from_the_pool() -> None:
    assert output_of(str(EXAMPLES / "pyopencl" / "arrays.py")) == (
        "last: 1999999\n"
        "tag: arrays\n"
        "bytes live: 8000000\n"
        "OutOfMemoryError: 134217728\n"
        "and after: 0\n"
    )
