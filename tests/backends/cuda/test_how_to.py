"""The code of the how-tos runs as it is printed, and so do the examples."""

import pytest

from tests.integration.peers import peer_or_skip
from tests.pages import EXAMPLES, code_of, needs_examples, needs_pages
from tests.programs import output_of

PRINTED = {
    ("docs/how-to/cuda-core.md", "cuda.core"): "",
    ("docs/how-to/cupy.md", "cupy"): "4000000\n",
    ("docs/how-to/numba.md", "numba.cuda"): "8000\n",
}


@needs_pages
@pytest.mark.parametrize(("page", "library"), PRINTED)
def test_the_code_of_the_page_runs(page: str, library: str) -> None:
    peer_or_skip(library)

    assert output_of("-c", code_of(page)) == PRINTED[page, library]


@needs_examples
@pytest.mark.parametrize(
    ("example", "library", "printed"),
    [
        (
            "cuda-core/buffers.py",
            "cuda.core",
            "buffers that came from the pool: 100\n"
            "committed for them: 4194304\n"
            "bytes live now: 0\n",
        ),
        (
            "cupy/arrays.py",
            "cupy",
            "device: cuda:0\n"
            "tagged: 10000000\n"
            "OutOfMemoryError: 100000000\n"
            "bytes live now: 0\n",
        ),
        (
            "numba/arrays.py",
            "numba.cuda",
            "arrays that came from the pool: 50\n"
            "calls of the driver for them: True\n"
            "free of the limit: 67108864\n",
        ),
    ],
)
def test_the_example_prints_what_it_promises(
    example: str, library: str, printed: str
) -> None:
    peer_or_skip(library)

    assert output_of(EXAMPLES / example) == printed
