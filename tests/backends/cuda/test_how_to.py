"""The code of the how-tos runs as it is printed, and so do the examples."""

import pytest

from tests.integration.ecosystem import EXAMPLES, PAGES, code_of, output_of
from tests.integration.peers import peer_or_skip

PRINTED = {
    ("cuda-core", "cuda.core"): "",
    ("cupy", "cupy"): "4000000\n",
    ("numba", "numba.cuda"): "8000\n",
}


@pytest.mark.skipif(not PAGES.exists(), reason="tests run without the documentation")
@pytest.mark.parametrize(("page", "library"), PRINTED)
def test_the_code_of_the_page_runs(page: str, library: str) -> None:
    peer_or_skip(library)

    assert output_of("-c", code_of(f"{page}.md")) == PRINTED[page, library]


@pytest.mark.skipif(not EXAMPLES.exists(), reason="tests run without the examples")
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

    assert output_of(str(EXAMPLES / example)) == printed
