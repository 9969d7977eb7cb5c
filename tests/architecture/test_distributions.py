"""What an index gets: the same bytes at each build, all that is needed, nothing more.

An sdist and a wheel of pure Python are built here. ``nox -s dist`` names a folder in
TEST_MADL_DIST, of compiled wheels too, and has those looked at instead.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from tests.pages import ROOT, needs_pages

pytestmark = [
    needs_pages,
    pytest.mark.skipif(find_spec("setuptools") is None, reason="it builds"),
]

MADE = (".*", "*.egg-info", "*.pyd", "*.so", "__pycache__", "build", "dist")
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist')"
# What the package is made of; the compiled core comes as ``IN_MACHINE_CODE``.
IN_A_WHEEL = {".css", ".gz", ".html", ".js", ".json", ".py", ".typed"}
OF_A_BUILD = {".h", ".pxd", ".pyx"}
IN_MACHINE_CODE = {".pyd", ".so"}
GIVEN = os.environ.get("TEST_MADL_DIST")


def build(folder: Path, also: str = "") -> Path:
    """Build in a copy of the checkout; return where the files are."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*MADE))
    done = subprocess.run(
        [sys.executable, "-c", BUILD + also],
        cwd=folder,
        env=os.environ | {"MADL_COMPILE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if GIVEN:
        return Path(GIVEN)
    return build(tmp_path_factory.mktemp("dist") / "madl", "; b.build_wheel('dist')")


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    [path] = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def source(sdist: Path) -> set[str]:
    """Return the names of an sdist's files, from its own folder on."""
    with tarfile.open(sdist) as archive:
        files = [entry.name for entry in archive if entry.isfile()]
    return {name.partition("/")[2] for name in files}


@pytest.fixture(scope="module", params=["pure", "compiled"])
def wheels(request: pytest.FixtureRequest, folder: Path) -> dict[str, set[str]]:
    """Return the names of each wheel's files: of those that are pure, or compiled."""
    found = {}
    for path in folder.glob("*.whl"):
        if path.name.endswith("-py3-none-any.whl") == (request.param == "pure"):
            with zipfile.ZipFile(path) as archive:
                names = {name for name in archive.namelist() if name[-1] != "/"}
                found[path.name] = names
    if not found and request.param == "compiled":
        pytest.skip("compiled wheels are built by nox -s dist")
    assert found
    return found


def of_package(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("madl/")}


def suffix(name: str) -> str:
    return PurePosixPath(name).suffix


def described(folder: Path, wheel: str, file: str) -> Message:
    """Return one of the files that describe a wheel."""
    with zipfile.ZipFile(folder / wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(f".dist-info/{file}")]
        return Parser().parsestr(archive.read(name).decode())


def test_an_sdist_has_the_same_bytes_each_time(sdist: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "elsewhere") / sdist.name

    assert again.read_bytes() == sdist.read_bytes()


@pytest.mark.skipif(
    not ((ROOT / ".git").exists() and shutil.which("git")), reason="no repository here"
)
def test_an_sdist_has_all_files_of_the_repository(source: set[str]) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    tracked = {name for name in listed.stdout.split("\n") if name and name[0] != "."}
    assert {name for name in tracked - source if (ROOT / name).exists()} == set()


def test_an_sdist_has_nothing_that_a_build_makes(source: set[str]) -> None:
    made = {"build", "dist", "__pycache__"}

    assert {name for name in source if made & set(name.split("/"))} == set()
    assert {name for name in source if suffix(name) in {".pyc", *IN_MACHINE_CODE}} == (
        set()
    )
    assert {name for name in of_package(source) if suffix(name) == ".c"} == set()


def test_a_wheel_has_all_of_the_package(
    source: set[str], wheels: dict[str, set[str]]
) -> None:
    package = {name for name in of_package(source) if suffix(name) not in OF_A_BUILD}

    assert "madl/py.typed" in package
    for names in wheels.values():
        assert package - names == set()


def test_a_wheel_has_nothing_but_the_package(wheels: dict[str, set[str]]) -> None:
    for names in wheels.values():
        tops = {name.partition("/")[0] for name in names}
        suffixes = {suffix(name) for name in of_package(names)} - IN_MACHINE_CODE

        assert {top for top in tops if not top.endswith(".dist-info")} == {"madl"}
        assert suffixes == IN_A_WHEEL


def test_a_wheel_says_where_it_runs(folder: Path, wheels: dict[str, set[str]]) -> None:
    for wheel, names in wheels.items():
        has_code = bool(IN_MACHINE_CODE & {suffix(name) for name in names})
        facts = described(folder, wheel, "WHEEL")

        assert has_code == (not wheel.endswith("-py3-none-any.whl"))
        assert facts["Root-Is-Purelib"] == str(not has_code).lower()
        assert wheel.endswith("-py3-none-any.whl") == (facts["Tag"] == "py3-none-any")


def test_a_compiled_wheel_has_each_part_of_the_core(
    source: set[str], wheels: dict[str, set[str]]
) -> None:
    parts = {PurePosixPath(n).stem for n in of_package(source) if suffix(n) == ".pyx"}

    for names in wheels.values():
        code = {name for name in names if suffix(name) in IN_MACHINE_CODE}
        compiled = {PurePosixPath(name).name.partition(".")[0] for name in code}

        assert not compiled or compiled == parts | {"skiplist", "pages", "first_fit"}


def test_a_wheel_names_licence_pythons_and_extras(
    folder: Path, wheels: dict[str, set[str]]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    for wheel in wheels:
        facts = described(folder, wheel, "METADATA")

        assert (facts["License-Expression"], facts["License-File"]) == (
            "MIT",
            "LICENSE",
        )
        assert facts["Requires-Python"] == project["requires-python"]
        assert set(facts.get_all("Provides-Extra", [])) == {
            *project["optional-dependencies"]
        }
