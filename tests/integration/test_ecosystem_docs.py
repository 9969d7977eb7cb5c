"""The code of the how-tos runs as it is printed, and so do the examples."""

import pytest

from tests.integration.peers import peer_or_skip
from tests.pages import EXAMPLES, code_of, needs_examples, needs_pages
from tests.programs import output_of

PAGES = {"torch": "docs/how-to/torch.md", "jax": "docs/how-to/jax.md"}


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@needs_pages
@pytest.mark.parametrize("library", PAGES)
def test_the_code_of_the_page_runs(library: str) -> None:
    peer_or_skip(library)

    assert output_of("-c", code_of(PAGES[library])) == ""


@needs_examples
def test_batches_of_pytorch_lie_in_one_block() -> None:
    peer_or_skip("torch")

    assert output_of(EXAMPLES / "torch" / "batches.py") == (
        "the loss fell: True\n20 batches lay in 1 block\nbytes live now: 0\n"
    )


@needs_examples
def test_inputs_of_jax_are_not_copied() -> None:
    peer_or_skip("jax")

    assert output_of(EXAMPLES / "jax" / "inputs.py") == (
        "copied: False\n"
        "mean of the last row: 999\n"
        "bytes live while JAX has them: 4000000\n"
        "and after: 0\n"
    )
