"""``madl diff`` and ``madl export``, and what ``madl replay`` says of a journal."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import madl
from madl import Pool
from madl.diagnostics import example_path, open_trace, save_snapshot
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from tests.command_line import ENVIRONMENT, status_of
from tests.torch_dumps import MIB, Dump


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def traces(tmp_path: Path) -> tuple[str, str]:
    pool = Pool("sim")
    paths = str(tmp_path / "a.trace.gz"), str(tmp_path / "b.trace.gz")
    for path, count in zip(paths, (2, 5), strict=True):
        with madl.record(path):
            held = [pool.allocate("1 MiB", tag="[weights]") for _ in range(count)]
            held.append(pool.allocate(100))
            del held
    return paths


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    with Pool("sim") as pool:
        held = pool.allocate(5)
        save_snapshot(pool.snapshot(), tmp_path / "s.json")
        del held
    return str(tmp_path / "s.json")


def test_diff_shows_what_grew(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = status_of("diff", *traces)

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert any(
        [cell.strip() for cell in line.split("│")[1:-1]]
        == ["[weights]", "2.0 MiB", "5.0 MiB", "+3.0 MiB", "2 -> 5"]
        for line in lines
    ), lines
    assert any("up to 1.0 MiB" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_diff_as_json_is_one_object(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = status_of("diff", *traces, "--json")

    found = json.loads(capsys.readouterr().out)
    assert status == 0
    assert found["tags"] == [
        {
            "name": "[weights]",
            "before": 2 << 20,
            "after": 5 << 20,
            "blocks_before": 2,
            "blocks_after": 5,
            "growth": 3 << 20,
        }
    ]
    assert {"totals", "tags", "sizes", "notes"} == found.keys()


def test_diff_of_snapshots(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("diff", snapshot, snapshot) == 0
    assert "nothing changed" in capsys.readouterr().out


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[str, str]:
    """Snapshots of PyTorch on its second GPU: early, and as it runs out of memory."""
    early, late = Dump(device=1), Dump(device=1)
    for dump, count in ((early, 1), (late, 3)):
        dump.segment(0, 20 * MIB)
        for number in range(count):
            dump.alloc(number * 4 * MIB, 3 * MIB, "model.py:7")
    late.fail(64 * MIB, MIB)
    paths = str(tmp_path / "early.pickle"), str(tmp_path / "late.pickle")
    for path, dump in zip(paths, (early, late), strict=True):
        Path(path).write_bytes(dump.pickled())
    return paths


def test_diff_of_pytorch_snapshots_is_of_what_is_live(
    dumps: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("diff", *dumps, "--json") == 0

    found = json.loads(capsys.readouterr().out)
    (tag,) = found["tags"]
    assert (tag["name"], tag["growth"]) == ("model.py:7 (step)", 6 * MIB)
    assert {one["name"]: (one["before"], one["after"]) for one in found["totals"]} == {
        "live_nbytes": (3 * MIB, 9 * MIB),
        "committed_nbytes": (20 * MIB, 20 * MIB),
        "cached_nbytes": (17 * MIB, 11 * MIB),
        "live_blocks": (1, 3),
    }


def test_diff_is_of_one_gpu_on_both_sides(
    dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "first.pickle"
    first = Dump()
    first.segment(0, 20 * MIB)
    other.write_bytes(first.pickled())

    assert status_of("diff", str(other), dumps[1]) == 1
    assert "says nothing of device 1; it has 0" in capsys.readouterr().err


def test_a_pytorch_snapshot_is_exported_for_both_viewers(
    dumps: tuple[str, str], tmp_path: Path
) -> None:
    pickled, perfetto = str(tmp_path / "new.pickle"), str(tmp_path / "new.json")

    assert status_of("export", dumps[1], pickled) == 0
    assert status_of("export", dumps[1], perfetto, "--device", "1") == 0

    old, new = read_torch_snapshot(dumps[1]), read_torch_snapshot(pickled)
    assert new == old._replace(path=pickled, name="new")
    events = json.loads(Path(perfetto).read_bytes())["traceEvents"]
    assert (
        max(sum(one["args"].values()) for one in events if one["ph"] == "C") == 73 * MIB
    )
    assert "out of memory" in {one["name"] for one in events}


def test_a_gpu_is_chosen_only_where_there_is_one(
    traces: tuple[str, str],
    snapshot: str,
    dumps: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = str(tmp_path / "out.pickle")

    assert status_of("export", dumps[0], target, "--device", "1") == 2
    assert "a .pickle has all GPUs" in capsys.readouterr().err
    for source in (traces[0], snapshot):
        assert status_of("export", source, target, "--device", "0") == 1
        assert status_of("diff", source, source, "--device", "0") == 1
        assert "Try: leave the device out" in capsys.readouterr().err


def test_diff_of_two_kinds_is_misuse(
    traces: tuple[str, str], snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("diff", traces[0], snapshot) == 2
    assert "a trace and a snapshot cannot be compared" in capsys.readouterr().err


def test_diff_of_a_broken_file_exits_with_1(
    traces: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"format":"madl-snapshot","version":1}')

    assert status_of("diff", traces[0], str(broken)) == 1
    assert capsys.readouterr().err == (
        f'madl: {broken}: "device" must be a printable text, got None\n'
    )


@pytest.mark.parametrize("target", ["out.pickle", "out.json"])
def test_export_writes_what_the_suffix_says(
    target: str, traces: tuple[str, str], tmp_path: Path
) -> None:
    assert status_of("export", traces[0], str(tmp_path / target)) == 0

    start = (tmp_path / target).read_bytes()[:2]
    assert start == {"out.pickle": b"\x80\x04", "out.json": b'{"'}[target]


@pytest.mark.skipif(sys.maxsize < 1 << 40, reason="needs addresses of 64 bits")
def test_an_export_that_needs_too_much_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "large.trace"
    source.write_text(f"# madl-trace v1\na,0,8\nf,0\na,1,{1 << 48}\n")

    assert status_of("export", str(source), str(tmp_path / "out.pickle")) == 1

    assert capsys.readouterr().err.splitlines()[-2:] == [
        "It is event 3 of 3.",
        "The trace has up to 256.0 TiB live at once.",
    ]


def test_export_to_an_unknown_kind_of_file_is_misuse(
    traces: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("export", traces[0], str(tmp_path / "out.html")) == 2
    assert "TARGET must end in .pickle or .json" in capsys.readouterr().err


def test_a_snapshot_is_exported_for_pytorch_only(
    snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("export", snapshot, str(tmp_path / "s.pickle")) == 0
    assert status_of("export", snapshot, str(tmp_path / "t.json")) == 2
    assert (
        "a snapshot of a pool can be written as .pickle only" in capsys.readouterr().err
    )


@pytest.fixture
def journal(tmp_path: Path) -> str:
    """Return what is left of a program that was killed."""
    pool = Pool("sim")
    with madl.record(tmp_path / "run.trace.gz"):
        pool.allocate(8).free()
        return str(shutil.copy(tmp_path / "run.trace.gz.journal", tmp_path / "left"))


OF_JOURNALS = {
    "diff": ["JOURNAL", "JOURNAL"],
    "export": ["JOURNAL", "out.pickle"],
    "replay": ["JOURNAL"],
    "report": ["JOURNAL"],
    "view": ["JOURNAL"],
    "whatif": ["JOURNAL"],
}


@pytest.mark.parametrize("name", OF_JOURNALS)
def test_each_command_says_that_a_journal_has_not_ended(
    name: str,
    journal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "view":
        pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (note,) = open_trace(journal).notes
    arguments = [text.replace("JOURNAL", journal) for text in OF_JOURNALS[name]]

    assert status_of(name, *arguments) == 0
    out, err = capsys.readouterr()
    assert status_of(name, *arguments, "--json") == 0
    as_json = json.loads(capsys.readouterr().out)

    if name in {"report", "whatif"}:  # whose notes belong to what they print
        assert (f"Note: {note}" in out.splitlines(), err) == (True, "")
    else:
        told = f"{journal}: {note}" if name == "diff" else note
        assert err == f"note: {told}\n"
    assert any(one.endswith(note) for one in as_json["notes"])


def test_diff_says_it_of_the_one_that_has_not_ended(
    journal: str, traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (note,) = open_trace(journal).notes

    assert status_of("diff", traces[0], journal) == 0
    assert capsys.readouterr().err == f"note: {journal}: {note}\n"


OF_PIPES = {
    "diff": ["PIPE", "PIPE"],
    "export": ["PIPE", "out.json"],
    "report": ["PIPE"],
    "view": ["PIPE"],
    "whatif": ["PIPE"],
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs names of pipes")
@pytest.mark.parametrize("name", OF_PIPES)
def test_what_has_to_be_read_twice_is_no_pipe(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = os.pipe()
    os.close(theirs)  # it is empty, if somebody reads it
    pipe = f"/dev/fd/{ours}"

    status = status_of(name, *(pipe if a == "PIPE" else a for a in OF_PIPES[name]))
    os.close(ours)

    assert status == 1
    assert capsys.readouterr().err == (
        f"madl: {pipe}: a pipe cannot be read twice. Try: write it to a file first\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a name of its stdin")
@pytest.mark.parametrize("name", ["replay", "report"])
def test_stdin_is_read_by_replay_alone(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "madl", name, "/dev/stdin", "--json"],
        input=example_path("vit-train").read_bytes(),
        capture_output=True,
        check=False,
        env=ENVIRONMENT,
    )

    if name == "replay":
        assert json.loads(done.stdout)["events"] > 0
    else:
        assert b"/dev/stdin: a pipe cannot be read twice" in done.stderr
