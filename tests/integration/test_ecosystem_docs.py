"""The code of the how-tos runs as it is printed, and so do the examples."""

import pytest

from tests.integration.ecosystem import EXAMPLES, PAGES, code_of, output_of
from tests.integration.peers import peer_or_skip

LIBRARIES = ("torch", "jax")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.skipif(not PAGES.exists(), reason="tests run without the documentation")
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_code_of_the_page_runs(library: str) -> None:
    peer_or_skip(library)

    assert output_of("-c", code_of(f"{library}.md")) == ""


@pytest.mark.skipif(not EXAMPLES.exists(), reason="tests run without the examples")
def test_batches_of_pytorch_lie_in_one_block() -> None:
    peer_or_skip("torch")

    assert output_of(str(EXAMPLES / "torch" / "batches.py")) == (
        "the loss fell: True\n20 batches lay in 1 block\nbytes live now: 0\n"
    )


@pytest.mark.skipif(not EXAMPLES.exists(), reason="tests run without the examples")
def test_inputs_of_jax_are_not_copied() -> None:
    peer_or_skip("jax")

    assert output_of(str(EXAMPLES / "jax" / "inputs.py")) == (
        "copied: False\n"
        "mean of the last row: 999\n"
        "bytes live while JAX has them: 4000000\n"
        "and after: 0\n"
    )
