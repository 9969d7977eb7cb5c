"""The code of the how-to runs as it is printed."""

import pytest

from tests.backends.opencl.device import pyopencl_or_skip
from tests.pages import blocks, needs_pages, run_here

pyopencl_or_skip()
pytestmark = pytest.mark.opencl


@needs_pages
def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_here(blocks("docs/how-to/pool-for-pyopencl.md"))

    assert capsys.readouterr().out == "8000000\n"
