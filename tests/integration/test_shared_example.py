"""The example of shared memory, and the code of its page, run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.programs import run_as_file

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "shared_memory" / "loader.py"
PAGE = ROOT / "docs" / "how-to" / "share-between-processes.md"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="tests run without the examples")
def test_the_loader_reads_every_batch() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    expected = "20 batches of 6 MiB, sum of their means 190\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.skipif(not PAGE.exists(), reason="tests run without the documentation")
def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    assert len(blocks) == 3
    for block in blocks:
        done = run_as_file(block)
        assert (done.returncode, done.stderr) == (0, ""), block
