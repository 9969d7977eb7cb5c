"""The code of the how-to runs as it is printed, and so does the example."""

import pytest

from tests.backends.opencl.device import pyopencl_or_skip
from tests.pages import EXAMPLES, blocks, needs_examples, needs_pages, run_here
from tests.programs import output_of

pyopencl_or_skip()
pytestmark = pytest.mark.opencl


@needs_pages
def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_here(blocks("docs/how-to/pool-for-pyopencl.md"))

    assert capsys.readouterr().out == "8000000\n"


@needs_examples
def test_arrays_of_the_example_come_from_the_pool() -> None:
    assert output_of(EXAMPLES / "pyopencl" / "arrays.py") == (
        "last: 1999999\n"
        "tag: arrays\n"
        "bytes live: 8000000\n"
        "OutOfMemoryError: 134217728\n"
        "and after: 0\n"
    )
