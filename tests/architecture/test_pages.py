"""Pages of the documentation: their code runs, their links and files are there."""

import re
from pathlib import Path

from tests.pages import ROOT, blocks, needs_pages

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


def headings_linked(page: Path) -> set[tuple[Path, str]]:
    """Return the headings that a page links to, with the pages that they are on."""
    found = re.findall(r"\]\(((?!\w+:)[^)#]*)#([^)]+)\)", page.read_text("utf-8"))
    return {
        ((page.parent / target).resolve() if target else page, heading)
        for target, heading in found
    }


def headings_of(page: Path) -> set[str]:
    """Return what GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings}


def test_a_test_runs_the_code_of_each_page() -> None:
    with_code = {
        name_of(page)
        for page in PAGES
        if re.search(r"^```(python|console)$", page.read_text("utf-8"), re.MULTILINE)
    }
    run = set(re.findall(r'"((?:docs/[\w/-]+|README)\.md)"', "\n".join(TESTS)))

    assert with_code - run == set()


def test_what_no_test_can_run_is_python_at_least() -> None:
    pages = [page for page in PAGES if "```py\n" in page.read_text("utf-8")]

    for page in pages:
        for block in blocks(name_of(page), "py"):
            compile(block, name_of(page), "exec")

    assert {page.stem for page in pages} == {"torch", "read-a-pytorch-snapshot"}


def test_each_link_leads_to_a_file() -> None:
    missing = {
        name_of(page): [link for link in links_of(page) if not link.exists()]
        for page in PAGES
    }

    assert {page: links for page, links in missing.items() if links} == {}


def test_the_index_has_every_page() -> None:
    of_the_site = {INDEX, INDEX.parent / "index.md", *(INDEX.parent / "site").iterdir()}
    pages = {page for page in PAGES if INDEX.parent in page.parents} - of_the_site

    assert pages - links_of(INDEX) == set()


def test_the_site_has_every_page() -> None:
    docs = INDEX.parent
    in_toctrees = re.findall(r"^[\w/-]+$", (docs / "index.md").read_text("utf-8"), re.M)

    pages = {page.relative_to(docs).with_suffix("") for page in docs.rglob("*.md")}

    assert {page.as_posix() for page in pages} - {"README", "index"} == {*in_toctrees}


def test_each_link_into_a_page_leads_to_a_heading() -> None:
    missing = {
        name_of(page): [
            f"{target.name}#{heading}"
            for target, heading in headings_linked(page)
            if heading not in headings_of(target)
        ]
        for page in PAGES
    }

    assert {page: links for page, links in missing.items() if links} == {}


def test_each_file_of_the_package_that_a_page_names_is_there() -> None:
    named = {
        (name_of(page), path)
        for page in PAGES
        for path in re.findall(r"`(madl/[\w./-]*)`", page.read_text("utf-8"))
        if "NAME" not in path
    }

    assert {one for one in named if not (ROOT / one[1]).exists()} == set()
