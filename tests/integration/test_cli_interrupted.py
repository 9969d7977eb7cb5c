"""What a command writes is whole, or is what was there before."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import madl
from madl.diagnostics import example_path
from madl.settings import current
from tests.command_line import ENVIRONMENT, status_of

EXAMPLE = str(example_path("gpt2-train"))
ONLY_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")


def is_whole(path: Path) -> bool:
    """Whether a file that was exported can be read to its end."""
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
@pytest.mark.parametrize("target", ["run.json", "run.pickle"])
def test_ctrl_c_leaves_no_half_written_file(tmp_path: Path, target: str) -> None:
    path = tmp_path / target
    path.write_text("before")
    process = subprocess.Popen(
        [sys.executable, "-m", "madl", "export", EXAMPLE, path],
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


def test_a_malformed_variable_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MADL_FIT", "worst")

    assert status_of("info") == 1

    assert capsys.readouterr().err == (
        "madl: MADL_FIT must be first or best, got 'worst'. Try: unset it, which means "
        "first\n"
    )


def test_info_says_where_a_setting_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("MADL_PAGE_SIZE", "cpu=64KiB")
    monkeypatch.setattr(current, "_readings", {})  # of pools that other tests made

    assert status_of("info") == 0
    assert status_of("info", "--json") == 0

    shown, _, as_json = capsys.readouterr().out.partition("\n{")
    assert "cpu=64.0 KiB, from MADL_PAGE_SIZE" in shown
    settings = {one["option"]: one for one in json.loads("{" + as_json)["settings"]}
    assert settings["page_size"] == {
        "option": "page_size",
        "variable": "MADL_PAGE_SIZE",
        "value": "cpu=64.0 KiB",
        "origin": "environment",
        "where": None,
        "late": [],
    }
    assert {*settings} == {one.option for one in madl.configuration()}


@ONLY_POSIX
@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_shows_no_colour_to_whoever_wants_none(variable: str) -> None:
    import pty

    ours, theirs = pty.openpty()
    wanted = {"NO_COLOR": "1"} if variable == "NO_COLOR" else {"TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "madl", "replay", "--example", "vit-train"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
        env={**ENVIRONMENT, "TERM": "xterm-256color", **wanted},
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert (done.returncode, done.stderr) == (0, b"")
    assert "peak live" in shown
    assert "\x1b[3" not in shown.replace("\x1b[3m", "")  # 3 alone is italic
