"""The code of the how-to runs as it is printed, and so does the example."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest

from madl.hotpath import IS_COMPILED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "numpy.md"
EXAMPLE = ROOT / "examples" / "numpy" / "batches.py"
OF_ANY_BUILD = 2


@pytest.mark.skipif(not PAGE.exists(), reason="tests run without the documentation")
def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}

    for block in blocks if IS_COMPILED else blocks[:OF_ANY_BUILD]:
        exec(block, names)

    assert len(blocks) == 4
    names.clear()
    gc.collect()


@pytest.mark.skipif(not EXAMPLE.exists(), reason="tests run without the examples")
@pytest.mark.skipif(not IS_COMPILED, reason="it needs a compiled madl")
def test_the_example_takes_from_the_system_once() -> None:
    done = subprocess.run(
        [sys.executable, "-P", EXAMPLE], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout == (
        "20 arrays came from the pool\n"
        "the system was asked for memory in the first batch: True\n"
        "and in the 4 others: False\n"
        "bytes live now: 0\n"
    )
