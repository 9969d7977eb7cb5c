"""What a command writes is whole, or is what was there before."""

import json
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from madl.diagnostics import example_path
from tests.command_line import ENVIRONMENT, status_of

EXAMPLE = str(example_path("gpt2-train"))
ONLY_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")


def is_whole(path: Path) -> bool:
    """Whether a file that was exported can be read to its end."""
    if path.suffix == ".html":
        return path.read_text("utf-8").rstrip().endswith("</html>")
    if path.suffix == ".json":
        return bool(json.loads(path.read_text("utf-8"))["traceEvents"])
    with path.open("rb") as file:
        return bool(pickle.load(file)) and not file.read()


def interrupt_when_it_writes(folder: Path, process: subprocess.Popen[str]) -> None:
    """Send SIGINT once a process has begun a file, or when it has ended before."""
    for _ in range(6000):
        if process.poll() is not None or any(folder.glob(".*.part")):
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)


@ONLY_POSIX
@pytest.mark.parametrize("target", ["run.json", "run.pickle", "run.html"])
def test_ctrl_c_leaves_no_half_written_file(tmp_path: Path, target: str) -> None:
    path = tmp_path / target
    path.write_text("before")
    command = ["export", EXAMPLE, str(path)]
    if target.endswith("html"):
        pytest.importorskip("plotly")
        command = ["view", EXAMPLE, "-o", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "madl", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=ENVIRONMENT,
    )

    interrupt_when_it_writes(tmp_path, process)
    _, errors = process.communicate(timeout=60)

    assert [file.name for file in tmp_path.iterdir()] == [target]
    if process.returncode == 0:  # it was quicker than the signal
        assert is_whole(path)
    else:
        assert (process.returncode, errors.strip()) == (1, "Aborted!")
        assert path.read_text() == "before" or is_whole(path)


@pytest.mark.parametrize("target", ["no/page.html", "no/run.json", "no/run.pickle"])
def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / target
    command = ["export", EXAMPLE, str(path)]
    if target.endswith("html"):
        pytest.importorskip("plotly")
        command = ["view", "--example", "vit-train", "-o", str(path)]

    assert status_of(*command) == 1

    assert capsys.readouterr().err == (
        f"madl: {path}: it cannot be written: No such file or directory\n"
    )
