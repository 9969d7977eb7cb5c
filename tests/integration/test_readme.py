"""What README and the first pages print and claim is so."""

import re

import pytest

from tests.command_line import madl
from tests.pages import ROOT, blocks, code_of, needs_pages
from tests.programs import output_of

pytestmark = needs_pages
BY_MACHINE = {"core", "ns per event", "of which the loop", "limit", "page"}


def rows(report: str) -> dict[str, str]:
    """Return the rows of a table that no machine decides."""
    found = re.findall(r"^│ +(.+?) +│ +(.+?) │$", report, re.MULTILINE)
    return {name: value for name, value in found if name not in BY_MACHINE}


def test_the_code_of_the_readme_runs() -> None:
    committed, given_back = map(int, output_of("-c", code_of("README.md")).split())

    assert given_back == committed >= 64 << 20


def test_the_first_command_reports_what_the_readme_shows() -> None:
    """On ``sim``: the same places, without a gigabyte of a machine's memory."""
    [report] = blocks("README.md", "text")
    first, *_ = blocks("README.md", "bash")
    example = re.search(r"--example ([\w-]+) ", first)
    assert example

    printed = madl("replay", "--example", example[1], COLUMNS="80")

    assert printed.returncode == 0
    assert rows(report)
    assert rows(printed.stdout) == rows(report)


@pytest.mark.parametrize("page", ["docs/README.md", "docs/faq.md"])
def test_the_code_of_the_page_runs(page: str) -> None:
    printed = output_of("-c", code_of(page))

    assert printed in ("", f"{64 << 20}\n")


def test_every_command_of_the_readme_is_there() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    listed = set(re.findall(r"`madl (\w+)", text))

    helped = {name for name in listed if not madl(name, "--help").returncode}

    assert helped == listed
