"""Everything at once in a process of its own, in short; ``nox -s soak`` is long."""

import json
from pathlib import Path

import pytest

from madl.hotpath import IS_COMPILED
from tests.programs import output_of

SOAK = Path(__file__).parents[1] / "soak.py"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 16])
def test_a_process_takes_no_more_after_its_first_half(threads: int) -> None:
    figures = json.loads(output_of(SOAK, "3", "--threads", str(threads)))

    assert figures["is_compiled"] == IS_COMPILED
    assert figures["operations"] > threads
