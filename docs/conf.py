"""How the pages become a site: ``nox -s docs`` makes it, ``tox -e docs`` tests it.

The pages are read as they are on GitHub, so the site has the same table of contents.
"""

import os
import re
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

import madl

DOCS = Path(__file__).resolve().parent
# Pages of the site that are made of a page elsewhere; their own file has what the site
# adds. Other pages may link to either.
TAKEN_IN = {
    "index": DOCS / "README.md",
    "site/examples": DOCS.parent / "examples" / "README.md",
    "site/security": DOCS.parent / "SECURITY.md",
    "site/plugin": DOCS.parent / "examples" / "plugin" / "README.md",
}
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
NAME = re.compile(r"``((?:madl\.)?[A-Za-z]\w*(?:\.[a-z]\w*)?)((?:\(\))?)``")

project = "madl"
author = "madl contributors"
copyright = author  # noqa: A001  # Sphinx's name for it
version = release = version_of("madl")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["README.md"]  # index is made of it
html_theme = "furo"
html_title = f"madl {version}"
html_static_path: list[str] = []
html_copy_source = False
html_show_copyright = False
templates_path: list[str] = []
pygments_style = "default"

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

nitpicky = True
# Names of other libraries, whose inventories would have to be downloaded.
nitpick_ignore_regex = [
    ("py:class", r"(_pytest|collections|os|pathlib)\..*"),
    ("py:class", r"(cl|cuda|cupy|distributed|np|npt|numpy|torch)\..*"),
    ("py:class", "array|DeviceNDArray|Integers|NDArray"),
    # What makes a backend, or proves it, from inside of madl and not from outside.
    ("py:class", r"madl\.backends\.(cuda|host|opencl)(\.\w+){1,2}"),
    ("py:class", r"madl\.testing\.(fakes\.FakeExport|workbench\.Workbench)"),
    # The options of madl.configure, which its page lists.
    ("py:class", r"madl\.settings\.Options"),
]


def skip_fields(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out the fields of a named tuple: its class's docstring tells them all."""
    return True if type(member).__name__ == "_tuplegetter" else None


def name_only(*described: object) -> tuple[str, None] | None:
    """Leave out the arguments of a class that only madl makes."""
    return ("", None) if described[2] == "madl.Memory" else None


def link_names(
    app: Sphinx, what: str, name: str, member: object, options: object, text: list[str]
) -> None:
    """Make links of the public names that a docstring has in double backquotes."""
    text[:] = [NAME.sub(_link, line) for line in text]


def _link(name: re.Match[str]) -> str:
    home, _, attribute = name[1].removeprefix("madl.").partition(".")
    found = getattr(madl, home) if home in madl.__all__ else None
    if not found or (attribute and not hasattr(found, attribute)):
        return name[0]
    dot = "." if attribute else ""
    return f":py:obj:`{name[1]}{name[2]} <madl.{home}{dot}{attribute}>`"


def take_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Begin a page with the one that it is made of; let links lead to such pages."""
    path = TAKEN_IN.get(name)
    here = DOCS / f"{name}.md" if path is None else path
    text = source[0] if path is None else f"{here.read_text('utf-8')}\n{source[0]}"
    home = {taken.resolve(): DOCS / f"{made}.md" for made, taken in TAKEN_IN.items()}

    def on_the_site(link: re.Match[str]) -> str:
        target = (here.parent / link[2]).resolve()
        if target.suffix == ".md" and not {target, *target.parents} & {DOCS, *home}:
            return link[1]  # a page that the site does not have
        found = os.path.relpath(home.get(target, target), (DOCS / name).parent)
        return f"[{link[1]}]({Path(found).as_posix()}{link[3] or ''})"

    source[0] = LINK.sub(on_the_site, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", take_in)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", link_names)
    app.connect("autodoc-process-signature", name_only)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
