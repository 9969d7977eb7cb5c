"""The map of the architecture names each file that it claims to, and no other."""

import re

from tests.pages import ROOT, needs_pages

pytestmark = needs_pages

MAP = ROOT / "docs" / "explanation" / "architecture.md"


def places() -> set[str]:
    """Return the files and folders of the package that the map names."""
    return set(re.findall(r"`(madl/[\w/.]+)`", MAP.read_text("utf-8")))


def test_the_map_leads_to_files() -> None:
    assert {place for place in places() if not (ROOT / place).exists()} == set()


def test_each_module_and_each_folder_is_on_the_map() -> None:
    modules = {f"madl/{path.name}" for path in (ROOT / "madl").glob("*.py")}
    folders = {f"madl/{path.parent.name}" for path in ROOT.glob("madl/*/__init__.py")}

    named = {place.rstrip("/") for place in places()}
    inside = {place.rpartition("/")[0] for place in named}
    assert (modules | folders) - named - inside == set()
