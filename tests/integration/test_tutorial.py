"""The tutorial prints what it says, and leaves the files that it speaks of."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.pages import ROOT, needs_pages

PAGE = "docs/tutorial.md"
pytestmark = needs_pages


@pytest.fixture
def rerun(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    monkeypatch.delenv("MADL_POOL", raising=False)
    return importlib.import_module("docs.rerun")


@pytest.mark.skipif(
    sys.platform != "linux" or sys.maxsize < 2**32,
    reason="it was printed by Linux on 64 bits",
)
def test_the_tutorial_prints_what_it_says(rerun: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = (ROOT / PAGE).read_text("utf-8")

    assert rerun.rerun(page, tmp_path) == page
    assert (tmp_path / "train.trace.gz").exists()
    assert "<html" in (tmp_path / "train.html").read_text("utf-8")


def test_what_a_page_says_wrongly_is_replaced(
    rerun: ModuleType, tmp_path: Path
) -> None:
    page = (
        "```python\n# sum.py\nprint(1 + 1)\n```\n\n"
        "```console\npython sum.py\n```\n\n```text\n3\n```\n"
    )

    assert rerun.rerun(page, tmp_path) == page.replace("\n3\n", "\n2\n")


def test_what_a_machine_decides_stays(rerun: ModuleType, tmp_path: Path) -> None:
    page = (
        "```python\n# row.py\nprint('│ core │ mine │')\n```\n\n"
        "```console\npython row.py\n```\n\n```text\n│ core │ yours │\n```\n"
    )

    assert rerun.rerun(page, tmp_path) == page
