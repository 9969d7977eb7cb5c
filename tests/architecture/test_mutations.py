"""Mutations are of the code as it is: each text to break stands there, once."""

from pathlib import Path

import pytest

from tests.mutate import MUTATIONS, Mutation

FOLDER = Path(__file__).parents[2] / "madl"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.why)
def test_what_a_mutation_breaks_is_there(mutation: Mutation) -> None:
    assert (FOLDER / mutation.file).read_text("utf-8").count(mutation.old) == 1
