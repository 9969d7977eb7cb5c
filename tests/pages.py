"""The pages of the documentation and the examples: tests run them as printed.

Blocks of ``python`` and ``console`` are run; one of ``py`` needs what no test has.
"""

import gc
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

needs_pages = pytest.mark.skipif(
    not (ROOT / "docs").exists(), reason="tests run without the documentation"
)
needs_examples = pytest.mark.skipif(
    not EXAMPLES.exists(), reason="tests run without the examples"
)


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of a language; a page is named as in ``docs/how-to/jax.md``."""
    text = (ROOT / page).read_text("utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no block of {language}"
    return found


def code_of(page: str) -> str:
    """Return all Python of a page, as one module."""
    return "\n\n".join(blocks(page))


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each ``madl`` in the blocks of ``console``."""
    lines = "".join(blocks(page, "console")).splitlines()
    split = [shlex.split(line) for line in lines]
    assert {program for program, *_ in split} == {"madl"}
    return [arguments for _, *arguments in split]


def run_here(code: Iterable[str]) -> None:
    """Run blocks one after another in one namespace, which ends with the last."""
    names: dict[str, object] = {}
    for block in code:
        exec(block, names)
    names.clear()
    gc.collect()
