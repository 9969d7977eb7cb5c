"""Settings are documented, and no variable is read that the settings do not know."""

import re

from madl.settings.kinds import shown
from madl.settings.known import KNOWN, OTHERS, SETTINGS
from tests.pages import ROOT, needs_pages

pytestmark = needs_pages

PAGE = "docs/how-to/configure.md"
FOLDERS = "benchmarks", "examples", "madl", "tests", "tools"
INVENT_NAMES = {"test_settings.py"}


def test_the_page_has_each_setting() -> None:
    settings = {
        f"| `{one.option}` | `{one.variable}` | {one.kind.allowed} | "
        f"{f'`{shown(one.default)}`' if one.default != () else 'none'} | "
        f"{one.meaning} | {one.is_read} |"
        for one in SETTINGS.values()
    }
    others = {f"| `{name}` | {meaning} |" for name, meaning in OTHERS.items()}

    lines = (ROOT / PAGE).read_text("utf-8").splitlines()
    assert {line for line in lines if "| `MADL_" in line} == settings | others


def test_every_variable_that_is_read_somewhere_is_known() -> None:
    paths = [ROOT / name for name in ("noxfile.py", "setup.py", "tox.ini")]
    for folder in FOLDERS:
        paths += (ROOT / folder).rglob("*.py")
    named = {
        name: path.name
        for path in paths
        if path.exists() and path.name not in INVENT_NAMES
        for name in re.findall(r"\bMADL_[A-Z_]+", path.read_text("utf-8"))
    }

    assert {name: where for name, where in named.items() if name not in KNOWN} == {}
