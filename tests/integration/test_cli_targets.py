"""Where a command writes: never over what it reads, and to a pipe as it comes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from madl.diagnostics import example_path
from tests.command_line import ENVIRONMENT, status_of

ONLY_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX's links")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a trace with a name that both commands would write."""
    return Path(shutil.copy(example_path("gpt2-train"), tmp_path / "run.json"))


def command(name: str, source: Path, target: Path) -> list[str]:
    """Return the arguments of a command that reads one and writes the other."""
    return [name, str(source), *(["-o"] if name == "view" else []), str(target)]


def refused(target: Path) -> str:
    return f"Error: the output is the input: {target}. Try: another name"


@pytest.mark.parametrize("name", ["view", "export"])
def test_the_input_is_not_written_over(
    name: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = source.read_bytes()

    assert status_of(*command(name, source, source)) == 2

    assert refused(source) in capsys.readouterr().err
    assert source.read_bytes() == before


@ONLY_POSIX
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", ["view", "export"])
def test_the_input_by_another_name_is_not_written_over(
    name: str,
    link: Callable[[Path, Path], None],
    source: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, other = source.read_bytes(), source.with_name("link.json")
    link(source, other)

    assert status_of(*command(name, source, other)) == 2

    assert refused(other) in capsys.readouterr().err
    assert source.read_bytes() == before


@pytest.mark.parametrize("name", ["view", "export"])
def test_a_broken_input_is_not_even_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(b"no trace")

    assert status_of(*command(name, broken, broken)) == 2
    assert refused(broken) in capsys.readouterr().err


def in_bash(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which ``madl`` is the command."""
    return subprocess.run(
        ["bash", "-c", command.replace("madl ", f"{sys.executable} -m madl ")],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=ENVIRONMENT,
    )


@ONLY_POSIX
@pytest.mark.parametrize("target", ["/dev/stdout", ">(cat)"])
def test_a_page_goes_through_a_pipe_alone(target: str) -> None:
    pytest.importorskip("plotly")

    done = in_bash(f"madl view --example vit-train -o {target} | cat")

    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.endswith("</html>\n")
    assert done.stderr.endswith(" MiB, open it in a browser\n")
    assert done.stderr.count("\n") == 1


@ONLY_POSIX
def test_a_reader_of_a_page_that_has_seen_enough_is_no_error() -> None:
    pytest.importorskip("plotly")

    done = in_bash("madl view --example vit-train -o /dev/stdout | head -c 15")

    assert (done.stdout, done.stderr) == ("<!doctype html>", "")
