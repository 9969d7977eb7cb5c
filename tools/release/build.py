"""The sdist, and the wheels that are built from it."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.release.command import CHECKOUT, run

MINORS = range(11, 16)
MADE = (".*", "*.egg-info", "*.pyd", "*.so", "__pycache__", "build", "dist")


def pythons() -> list[Path]:
    """Return one CPython of each version: this one, those on PATH, and pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    # Not pyenv's shims: they stand for one version, and fail for all others.
    folders = [name for name in os.get_exec_path() if Path(name).name != "shims"]
    path = os.pathsep.join([*folders, *map(str, sorted(pyenv.glob("3.*/bin")))])
    found = {minor: shutil.which(f"python3.{minor}", path=path) for minor in MINORS}
    found[sys.version_info.minor] = sys.executable
    return [Path(python) for python in found.values() if python]


@contextmanager
def environment(python: Path) -> Iterator[Path]:
    """Give the Python of an empty virtual environment, and remove it in the end."""
    with tempfile.TemporaryDirectory(prefix="madl-release-") as folder:
        run(sys.executable, "-m", "virtualenv", "--quiet", "-p", python, folder)
        windows = sys.platform == "win32"
        yield Path(folder, "Scripts" if windows else "bin", "python")


def sdist(folder: Path) -> Path:
    """Build the sdist, from a copy without what builds have left in the checkout."""
    with tempfile.TemporaryDirectory(prefix="madl-release-") as name:
        copy = Path(name, "madl")
        shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*MADE))
        run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, copy)
    [path] = folder.glob("*.tar.gz")
    return path


def pure_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel that runs anywhere."""
    return _wheel(source, folder, Path(sys.executable), MADL_COMPILE="0")


def compiled_wheel(source: Path, folder: Path, python: Path) -> Path | None:
    """Build a wheel for one CPython; None where nothing here makes it fit to share.

    On Linux that is ``auditwheel``, which finds the oldest manylinux that has all the
    symbols of the C library that this system's compiler has linked to.
    """
    if sys.platform != "linux":
        return None
    with tempfile.TemporaryDirectory(prefix="madl-release-") as name:
        made = _wheel(source, Path(name), python, MADL_COMPILE="1")
        repaired = Path(name, "repaired")
        run("auditwheel", "show", made)
        run("auditwheel", "repair", "--strip", "--wheel-dir", repaired, made)
        [path] = repaired.glob("*.whl")
        return Path(shutil.move(path, folder))


def _wheel(source: Path, folder: Path, python: Path, **env: str) -> Path:
    """Build one wheel; its files are as old as the sdist says."""
    with tempfile.TemporaryDirectory(prefix="madl-release-") as name:
        with environment(python) as builder:
            how = ("wheel", "--quiet", "--no-deps", "--no-cache-dir")
            times = {"SOURCE_DATE_EPOCH": "315532800", **env}
            run(builder, "-m", "pip", *how, "-w", name, source, env=times)
        [path] = Path(name).glob("*.whl")
        assert re.search(r"-py3-none-any|-cp\d+-", path.name), path
        return Path(shutil.move(path, folder))
