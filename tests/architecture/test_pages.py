"""No page of the documentation has code that nothing runs, or a link to nowhere."""

import re
from pathlib import Path

from tests.pages import ROOT, needs_pages

pytestmark = needs_pages

INDEX = ROOT / "docs" / "README.md"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]
TESTS = [
    text
    for path in (ROOT / "tests").rglob("test_*.py")
    if "from tests.pages import" in (text := path.read_text("utf-8"))
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def links_of(page: Path) -> set[Path]:
    """Return the files that a page links to, all others' servers left out."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
    return {
        (page.parent / target).resolve()
        for target in targets
        if not target.startswith("https://")
    }


def test_a_test_runs_the_code_of_each_page() -> None:
    with_code = {
        name_of(page) for page in PAGES if "```python\n" in page.read_text("utf-8")
    }
    run = set(re.findall(r'"((?:docs/[\w/-]+|README)\.md)"', "\n".join(TESTS)))

    assert with_code - run == set()


def test_each_link_leads_to_a_file() -> None:
    missing = {
        name_of(page): [link for link in links_of(page) if not link.exists()]
        for page in PAGES
    }

    assert {page: links for page, links in missing.items() if links} == {}


def test_the_index_has_every_page() -> None:
    pages = {page for page in PAGES if page.parent.parent == INDEX.parent}

    assert pages - links_of(INDEX) == set()
