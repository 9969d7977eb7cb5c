"""The figures of the explanations show the code as it is."""

import importlib
import sys

import pytest

from madl.hotpath import IS_COMPILED
from tests.pages import ROOT, needs_pages

PICTURES = ROOT / "docs" / "explanation" / "pictures"
pytestmark = [
    needs_pages,
    pytest.mark.skipif(IS_COMPILED, reason="the compiled index shows nobody its links"),
]


def test_the_figures_are_as_they_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    figures = importlib.import_module("docs.figures.__main__").FIGURES

    stale = [
        name
        for name, draw in figures.items()
        if (PICTURES / name).read_text("utf-8") != draw()
    ]

    assert stale == [], "python -m docs.figures draws them anew"
    assert {path.name for path in PICTURES.iterdir()} == set(figures)
