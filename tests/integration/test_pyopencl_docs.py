"""The code of the how-to runs as it is printed."""

import gc
import re
from pathlib import Path

import pytest

from tests.backends.opencl.device import pyopencl_or_skip

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
