"""Settings are documented, and no variable is read that the settings do not know."""

import re

from madl.settings.kinds import shown
from madl.settings.known import KNOWN, OTHERS, SETTINGS
from tests.pages import ROOT, needs_pages

pytestmark = needs_pages

PAGE = "docs/how-to/configure.md"
FOLDERS = "benchmarks", "examples", "madl", "tests", "tools"
INVENT_NAMES = {"test_settings.py"}


def test_the_page_has_each_setting_and_its_default() -> None:
    lines = (ROOT / PAGE).read_text("utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if "| `MADL_" in line]

    assert [(row[0], row[1], row[3]) for row in rows if len(row) > 2] == [
        (
            f"| `{one.option}`",
            f"`{one.variable}`",
            f"`{shown(one.default)}`" if one.default != () else "none",
        )
        for one in SETTINGS.values()
    ]
    others = [row[0] for row in rows if len(row) == 2]
    assert others == [f"| `{name}`" for name in OTHERS]


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
