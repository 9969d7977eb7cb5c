"""madl imported from a zip, as a zipapp or a wheel on ``sys.path``."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import madl

PACKAGE = Path(madl.__file__).parent


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package in a zip; what is compiled cannot be imported from one."""
    path = tmp_path_factory.mktemp("zip") / "madl.zip"
    with zipfile.ZipFile(path, "w") as file:
        for source in PACKAGE.rglob("*"):
            if source.is_file() and source.suffix not in (".so", ".pyd", ".pyc"):
                file.write(source, source.relative_to(PACKAGE.parent))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--example", "gpt2-train"],
        ["replay", "--example", "gpt2-train", "--device", "sim"],
    ],
)
def test_commands_find_the_files_beside_the_code(
    arguments: list[str], packed: Path
) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(packed)!r})
import madl
assert ".zip" in madl.__file__, madl.__file__
from madl.cli import main
main({arguments!r})
"""

    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=packed.parent,
        env={"PATH": "/usr/bin:/bin"},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_page_is_drawn(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    trace, page = tmp_path / "t.trace", tmp_path / "page.html"
    trace.write_text("# madl-trace v1\na,0,1000\n")

    subprocess.run(
        [sys.executable, "-m", "madl", "view", trace, "-o", page],
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packed)},
    )

    assert "<canvas" in page.read_text() or "plotly" in page.read_text()
