"""CITATION.cff is of the version that is built, and says what it has to."""

import re
import tomllib

from tests.pages import ROOT, needs_pages

pytestmark = needs_pages


def fields() -> dict[str, str]:
    """Return what is on the first level; Python itself reads no YAML."""
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    return dict(re.findall(r"^([\w-]+): *(.*)$", text, re.MULTILINE))


def test_a_citation_is_of_the_version_and_licence_that_are_built() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    project = settings["project"]
    assert (fields()["version"], fields()["license"]) == (
        project["version"],
        project["license"],
    )


def test_a_citation_has_what_its_format_requires() -> None:
    required = {"cff-version", "message", "title", "authors", "references"}

    assert required - set(fields()) == set()
