"""The code of the how-to runs as it is printed, and so does the example."""

import pytest

from madl.hotpath import IS_COMPILED
from tests.pages import EXAMPLES, blocks, needs_examples, needs_pages, run_here
from tests.programs import output_of

OF_ANY_BUILD = 2


@needs_pages
def test_the_code_of_the_page_runs() -> None:
    code = blocks("docs/how-to/numpy.md")

    run_here(code if IS_COMPILED else code[:OF_ANY_BUILD])

    assert len(code) == OF_ANY_BUILD + 2


@needs_examples
@pytest.mark.skipif(not IS_COMPILED, reason="it needs a compiled madl")
def test_the_example_takes_from_the_system_once() -> None:
    assert output_of(EXAMPLES / "numpy" / "batches.py") == (
        "20 arrays came from the pool\n"
        "the system was asked for memory in the first batch: True\n"
        "and in the 4 others: False\n"
        "bytes live now: 0\n"
    )
