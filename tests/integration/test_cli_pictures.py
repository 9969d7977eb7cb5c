"""``madl view``, ``madl report`` and ``madl whatif`` in a process of their own."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from madl import Pool
from madl.diagnostics import example_path, open_trace
from madl.diagnostics.replay import replay
from tests.command_line import madl
from tests.torch_dumps import MIB, fragmented

EXAMPLE = example_path("resnet50-train")


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "run.pickle"
    path.write_bytes(fragmented().pickled())
    return path


@pytest.fixture
def malicious(tmp_path: Path) -> Path:
    class Attack:
        def __reduce__(self) -> Any:  # noqa: ANN401  # pickle's protocol
            return os.system, (f"touch {tmp_path / 'made'}",)

    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps({"segments": [Attack()]}, 4))
    return path


def test_report_prints_what_the_json_says() -> None:
    figures = json.loads(madl("report", EXAMPLE, "--json").stdout)
    done = madl("report", EXAMPLE)

    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        f"{figures['events']:,}",
        f"{figures['committed_over_live']:.4f}",
        f"{figures['at_peak']['fragmentation_ratio']:.1%}",
    ):
        assert text in done.stdout


def test_the_figures_of_a_report_are_those_of_a_replay() -> None:
    result = replay(open_trace(EXAMPLE), Pool("sim"))

    figures = json.loads(madl("report", EXAMPLE, "--json").stdout)

    assert figures["peak_live_nbytes"] == result.peak_live_nbytes
    assert figures["peak_committed_nbytes"] == result.peak_committed_nbytes
    assert sum(band["blocks"] for band in figures["bands"]) == figures["blocks"]


def test_report_is_at_most_eighty_columns_and_plain_without_a_terminal() -> None:
    done = madl("report", EXAMPLE)

    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout


def test_report_has_no_colour_where_none_is_wanted() -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}

    coloured = madl("report", EXAMPLE, **terminal).stdout
    plain = madl("report", EXAMPLE, NO_COLOR="1", **terminal).stdout

    assert "\x1b[" in coloured
    assert "\x1b[3" not in plain.replace("\x1b[3m", "")


def test_report_is_ascii_where_the_terminal_is() -> None:
    done = madl("report", EXAMPLE, PYTHONIOENCODING="ascii")

    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_report_ends_with_the_occupancy_at_the_peak() -> None:
    *_, heading, line, legend = madl("report", EXAMPLE).stdout.splitlines()

    assert heading == "at the peak, all that was ever committed, end to end:"
    assert legend.startswith("# full ")
    assert legend.endswith("_ not committed")
    assert set(line) <= set("#+-._")


def test_report_names_the_holders_of_a_snapshot(snapshot: Path) -> None:
    done = madl("report", snapshot)

    assert "run on cuda:0" in done.stdout
    assert "model.py:7 (step)" in done.stdout


def test_view_writes_a_page(snapshot: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"

    done = madl("view", snapshot, "-o", page)

    assert done.returncode == 0, done.stderr
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_view_names_the_page_after_the_file(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly")
    monkeypatch.chdir(snapshot.parent)

    figures = json.loads(madl("view", snapshot.name, "--json").stdout)

    assert figures["page"] == "run.pickle.html"
    assert Path("run.pickle.html").stat().st_size > 1 << 20


def test_a_page_that_cannot_be_written_is_one_line(snapshot: Path) -> None:
    pytest.importorskip("plotly")

    done = madl("view", snapshot, "-o", snapshot.parent / "no" / "page.html")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_whatif_says_what_to_export(snapshot: Path) -> None:
    done = madl("whatif", snapshot)

    assert done.returncode == 0, done.stderr
    assert "export PYTORCH_ALLOC_CONF=expandable_segments:True" in done.stdout
    assert "model.py:20 (step)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_whatif_is_data_too(snapshot: Path) -> None:
    figures = json.loads(madl("whatif", snapshot, "--json").stdout)

    assert figures["failure"]["free"]["largest_nbytes"] == 14 * MIB
    assert figures["export"] == "expandable_segments:True"
    assert figures["capacity_nbytes"] == 82 * MIB


def test_whatif_takes_a_limit_for_a_trace() -> None:
    figures = json.loads(madl("whatif", EXAMPLE, "--limit", "64GiB", "--json").stdout)

    assert {one["fits"] for one in figures["outcomes"]} == {True}


@pytest.mark.parametrize("command", ["view", "report", "whatif"])
def test_a_malicious_file_is_refused_with_one_line(
    command: str, malicious: Path
) -> None:
    done = madl(command, malicious)

    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "names a function or class to import" in line
    assert not (malicious.parent / "made").exists()


@pytest.mark.parametrize("command", ["view", "report", "whatif"])
def test_a_file_that_is_not_there_is_one_line(command: str) -> None:
    done = madl(command, "nowhere.trace")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "madl: nowhere.trace: No such file or directory\n"
