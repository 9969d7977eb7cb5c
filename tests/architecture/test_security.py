"""What SECURITY.md promises has the tests that it names."""

import re

from tests.pages import ROOT, needs_pages

pytestmark = needs_pages


def test_each_promise_has_its_test() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    promises = text.partition("## What holds")[2].partition("##")[0]
    rows = [row for row in promises.splitlines() if row.startswith("| ")][1:]

    named = [re.findall(r"`(tests/[\w/.]+)`", row) for row in rows]

    assert len(rows) > 8
    assert all(named)
    assert [one for row in named for one in row if not (ROOT / one).exists()] == []
