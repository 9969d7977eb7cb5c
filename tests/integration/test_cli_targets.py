"""Where a command writes: never over its input, to pipes, to a full disk."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from madl.cli import commands
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


def test_a_page_without_plotly_is_one_line(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)

    assert status_of(*command("view", source, source.with_name("page.html"))) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("madl: plotly cannot be imported: ")
    assert line.endswith("; pip install 'madl[viz]'")


@ONLY_POSIX
def test_a_reader_of_a_page_that_has_seen_enough_is_no_error() -> None:
    pytest.importorskip("plotly")

    done = in_bash("madl view --example vit-train -o /dev/stdout | head -c 15")

    assert (done.stdout, done.stderr) == ("<!doctype html>", "")


ANY_COMMAND = {
    "bench": "--device sim",
    "completion": "bash",
    "diff": "EXAMPLE EXAMPLE",
    "export": "EXAMPLE run.pickle",
    "info": "",
    "replay": "EXAMPLE",
    "report": "EXAMPLE",
    "view": "EXAMPLE",
    "whatif": "EXAMPLE",
}


def test_any_command_is_any_command() -> None:
    assert ANY_COMMAND.keys() == commands.commands.keys()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "replay --help",
        "info --json",
        *(f"{name} {rest}".rstrip() for name, rest in ANY_COMMAND.items()),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(
    line: str, tmp_path: Path
) -> None:
    if line.startswith("view"):
        pytest.importorskip("plotly")
    line = line.replace("EXAMPLE", str(example_path("vit-train")))

    done = in_bash(f"cd {tmp_path}; madl {line} > /dev/full")

    assert (done.returncode, done.stderr) == (
        1,
        "madl: the output cannot be written: No space left on device\n",
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_it_is_one_line_without_a_buffer_too() -> None:
    done = in_bash("PYTHONUNBUFFERED=1 madl info > /dev/full")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@ONLY_POSIX
@pytest.mark.parametrize("line", ["info", "info --json", "--help", "completion bash"])
def test_a_reader_that_has_seen_enough_is_no_error(line: str) -> None:
    assert in_bash(f"madl {line} | head -1").stderr == ""
