"""The modules of the madl under test, found on disk and not by importing them."""

import sys
from importlib.util import find_spec
from pathlib import Path

import madl

PACKAGE = Path(madl.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return what to import for a file; a folder's ``__init__.py`` is the folder."""
    place = path.parent if path.stem == "__init__" else path.with_suffix("")
    return ".".join(("madl", *place.relative_to(PACKAGE).parts))


NOT_OF_WINDOWS = {
    "android",
    "linux",
    "linux_calls",
    "linux_numa",
    "linux_reservations",
    "proc",
    "shared_posix",
}
NEEDS = {"madl.integrations.dask": "distributed"}
"""Modules that cannot do without another library, which may be absent."""

MODULES = [
    name_of(path)
    for path in FILES
    if (sys.platform != "win32" or path.stem not in NOT_OF_WINDOWS)
    and find_spec(NEEDS.get(name_of(path), "madl"))
]
