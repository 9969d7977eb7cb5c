"""Settings and colours, as the command line shows them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import madl
from madl.backends import registry
from tests.command_line import ENVIRONMENT, status_of

ONLY_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal")
PLUGIN = """
import madl

madl.configure(fit="best")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of a plugin that sets something when it is imported."""
    path = tmp_path / "madl_setter.py"
    path.write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MADL_PLUGINS", "madl_setter")
    monkeypatch.setattr("madl.settings._configured", {})
    monkeypatch.setattr("madl.settings._readings", {})  # of pools that other tests made
    registry.forget_plugins()
    yield path
    registry.forget_plugins()
    sys.modules.pop("madl_setter", None)


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
    monkeypatch.setattr("madl.settings._readings", {})  # of pools that other tests made

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


def test_info_names_the_line_that_called_configure(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("info", "--json") == 0

    settings = json.loads(capsys.readouterr().out)["settings"]
    [fit] = [one for one in settings if one["option"] == "fit"]
    assert (fit["value"], fit["origin"]) == ("best", "configure")
    assert fit["where"] == f"{plugin}:4"


def test_info_says_who_reads_a_setting_too_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("madl.settings._readings", {})
    madl.Pool("sim")
    monkeypatch.setenv("MADL_POOL", "off")

    assert status_of("info") == 0

    assert "off, from MADL_POOL; too late, sim has on since" in capsys.readouterr().out


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
