"""The command line in a process of its own."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command_line import ENVIRONMENT, madl

HEAD = b"# madl-trace v1\n"
ALL_KINDS = (
    ". Try: one of these, a journal, Umpire's log; with `madl report` a snapshot or "
    "PyTorch's pickle"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace with a peak of 3,000,100 bytes, of which 50 stay live."""
    path = tmp_path / "small.trace"
    path.write_bytes(HEAD + b"# name: small\na,0,3000000\na,1,100\nf,0\na,2,50\nf,1\n")
    return path


def table(text: str) -> dict[str, str]:
    """Return the rows of a table without header."""
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    return {row[1].strip(): row[2].strip() for row in rows}


def test_replay_prints_a_table_of_eighty_columns_at_most(trace: Path) -> None:
    done = madl("replay", trace)

    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.splitlines()[0].strip() == "small on sim"


def test_the_table_says_what_was_committed(trace: Path) -> None:
    rows = table(
        madl("replay", trace, "--page-size", "64KiB", "--limit", "8 MiB").stdout
    )

    assert rows["policy"] == "first fit, recycling"
    assert (rows["page"], rows["limit"]) == ("64.0 KiB", "8.0 MiB")
    assert (rows["events"], rows["allocations"]) == ("5", "3")
    assert (rows["peak live"], rows["peak committed"]) == ("2.9 MiB", "2.9 MiB")
    assert float(rows["committed / live"]) == pytest.approx(1.03, abs=0.03)
    assert int(rows["backend calls"]) > 0
    assert rows["recycled pages"].isdigit()
    assert rows["allocations served by bins"].endswith("%")
    assert rows["ns per event"].replace(",", "").isdigit()


def test_the_table_ends_with_the_occupancy_at_the_peak(trace: Path) -> None:
    heading, line, legend = madl("replay", trace).stdout.splitlines()[-3:]

    assert heading == "at the peak:"
    assert len(line) == 80 - (sys.platform == "win32")  # rich leaves one free there
    assert set(line) <= set("#+-._|")
    assert legend.startswith("# full ")


def test_json_has_every_figure(trace: Path) -> None:
    done = madl("replay", trace, "--json", "--fit", "best", "--no-recycle")

    figures = json.loads(done.stdout)
    assert done.stderr == ""
    assert figures["committed_over_live"] == (
        figures["peak_committed_nbytes"] / figures["peak_live_nbytes"]
    )
    assert figures["ns_per_event"] == pytest.approx(figures["seconds"] * 1e9 / 5)
    assert {
        name: figures[name]
        for name in (
            "trace",
            "device",
            "policy",
            "events",
            "allocations",
            "peak_live_nbytes",
            "live_at_end_nbytes",
            "recycled_pages",
            "limit_nbytes",
        )
    } == {
        "trace": "small",
        "device": "sim",
        "policy": "best fit, no recycling",
        "events": 5,
        "allocations": 3,
        "peak_live_nbytes": 3000100,
        "live_at_end_nbytes": 50,
        "recycled_pages": 0,
        "limit_nbytes": None,
    }
    assert figures["core"] in {"compiled", "pure Python"}
    assert {"backend_calls", "page_nbytes", "loop_ns_per_event"} <= set(figures)


@pytest.mark.parametrize("example", ["gpt2-train", "resnet50-train", "vit-train"])
def test_an_example_is_replayed_without_a_file(example: str) -> None:
    done = madl("replay", "--example", example, "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["peak_live_nbytes"] > 900_000_000


def test_a_csv_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text("id,lower,upper,size\n0,0,10,4096\n1,5,15,1024\n")

    done = madl("replay", path, "--json")

    assert json.loads(done.stdout)["peak_live_nbytes"] == 5120


def test_the_host_is_touched(trace: Path) -> None:
    done = madl("replay", trace, "--device", "cpu", "--touch", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["device"] == "cpu"


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line on stderr of a command that a MadlError ended."""
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("madl: ")
    return done.stderr.removeprefix("madl: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            gzip.compress(HEAD + b"a,0,8\n" * 50, mtime=0)[:-20],
            ": the gzip data ends too early. Try: copy the whole file again",
        ),
        (HEAD + b"a,0,8\nf,7\n", ":3: id 7 is freed, but only 1 are allocated"),
        (HEAD + b"a,0,-8\n", ":2: nbytes must not be negative, got '-8'"),
        (
            HEAD + b"a,0,99999999999999999999\n",
            ":2: nbytes must be below 72057594037927936, got '99999999999999999999'",
        ),
        (
            bytes(range(256)) * 9,
            ":1: the first line must be '# madl-trace v1' or 'id,lower,upper,size' "
            "or 'Thread,Time,Action,Pointer,Size,Stream', "
            f"but this is a binary file{ALL_KINDS}",
        ),
        (
            b"",
            ":1: the first line must be '# madl-trace v1' or 'id,lower,upper,size' "
            "or 'Thread,Time,Action,Pointer,Size,Stream', "
            f"but it is empty{ALL_KINDS}",
        ),
    ],
    ids=["truncated", "unknown id", "negative", "absurd", "binary", "empty"],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, content: bytes, reason: str, options: tuple[str, ...]
) -> None:
    path = tmp_path / "bad.trace"
    path.write_bytes(content)

    assert failure(madl("replay", path, *options)) == f"{path}{reason}"


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "none.trace"

    assert failure(madl("replay", path)) == f"{path}: No such file or directory"


def test_a_directory_is_one_clear_line(tmp_path: Path) -> None:
    assert failure(madl("replay", tmp_path)) == f"{tmp_path}: Is a directory"


def test_a_size_that_no_device_has_is_an_out_of_memory_report(tmp_path: Path) -> None:
    path = tmp_path / "huge.trace"
    path.write_bytes(HEAD + b"a,0,72057594037927935\n")

    done = madl("replay", path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("madl: sim: cannot place 64.0 PiB")
    assert "Traceback" not in done.stderr


def test_a_limit_that_is_too_small_prints_the_report(trace: Path) -> None:
    done = madl("replay", trace, "--limit", "1 MiB")

    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("madl: sim: cannot place 2.9 MiB")
    assert "  committed   0 B, limit 1.0 MiB" in lines
    assert "Try: a limit of at least 2.9 MiB, or a smaller request." in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["replay", "report", "view"])
def test_a_limit_that_is_too_small_is_met_at_an_event(
    trace: Path, command: str
) -> None:
    trace.write_bytes(HEAD + b"a,0,0\na,1,100\nf,1\na,2,3000000\n")

    done = madl(command, trace, "--limit", "1 MiB")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "It is event 4 of 4.",
        "The trace has up to 2.9 MiB live at once.",
    ]


def test_the_report_says_what_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "full.trace"
    path.write_bytes(HEAD + b"a,0,900000\na,1,900000\n")

    done = madl("replay", path, "--limit", "1 MiB")

    assert "  live        878.9 KiB in 1 block, and 96 B padding" in done.stderr
    assert "0 B from garbage collection" in done.stderr
    assert "It is event 2 of 2." in done.stderr


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("nvme:0", "no backend of kind 'nvme'"),
        ("nonsense!", "a device is named like 'cpu' or 'cuda:0'"),
    ],
)
def test_an_absent_device_is_one_clear_line(
    trace: Path, device: str, reason: str
) -> None:
    assert failure(madl("replay", trace, "--device", device)) == (
        f"no backend opens device {device!r} ({reason}); kinds that madl knows: "
        "cpu, cuda, opencl, shared, sim. "
        "Try: `madl info`, or install the extra or plugin for that device"
    )


@pytest.mark.parametrize("option", ["--touch", "--verify"])
def test_what_writes_needs_a_device_with_memory(trace: Path, option: str) -> None:
    done = madl("replay", trace, option)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        f"Error: {option} needs a device with memory. Try: --device cpu\n"
    )


def test_a_malformed_variable_is_no_misuse_of_replay(trace: Path) -> None:
    assert failure(madl("replay", trace, MADL_POOL="maybe")) == (
        "MADL_POOL must be on or off, got 'maybe'. Try: unset it, which means on"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["replay"], "name either a FILE or an --example"),
        (
            ["replay", "x.trace", "--example", "vit-train"],
            "name either a FILE or an --example",
        ),
        (["replay", "--example", "none"], "'none'"),
        (["replay", "x", "--limit", "lots"], "got 'lots'"),
        (["replay", "x", "--limit", "-5"], "got '-5'"),
        (["replay", "x", "--limit", "99999999999999999999"], "address space"),
        (["replay", "x", "--page-size", "1.5"], "got '1.5'"),
        (["replay", "--example", "vit-train", "--page-size", "1000"], "got 1000"),
        (["replay", "--example", "vit-train", "--page-size", "0"], "got 0"),
        (["replay", "x", "--fit", "worst"], "'worst'"),
        (["replay", "x", "--what"], "--what"),
        (["replay", "x", "y"], "unexpected extra argument"),
        (["reply"], "No such command 'reply'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_misuse_is_said_with_the_usage(arguments: list[str], text: str) -> None:
    done = madl(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: madl ")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("-h",), ("replay", "--help"), ("info", "-h")]
)
def test_help_fits_eighty_columns(arguments: tuple[str, ...]) -> None:
    done = madl(*arguments)

    text = done.stdout or done.stderr  # without a command, click helps on stderr
    assert text.startswith("Usage: madl ")
    assert max(map(len, text.splitlines())) <= 80


def test_info_says_what_madl_runs_on() -> None:
    done = madl("info")

    rows = table(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows["core"] in {"compiled", "pure Python"}
    assert "Python" in rows["python"]
    assert "device cpu" in done.stdout
    assert "device sim" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_info_as_json_has_every_device() -> None:
    facts = json.loads(madl("info", "--json").stdout)

    assert {"cpu", "sim"} <= set(facts["devices"])
    assert facts["devices"]["sim"]["capabilities"] == "COMMIT, REMAP, SETTLE, SIMULATED"
    assert "HOST_ACCESS" in facts["devices"]["cpu"]["capabilities"]
    assert {"version", "core", "python", "system"} <= set(facts)


@pytest.mark.parametrize("arguments", [("replay", "--example", "vit-train"), ("info",)])
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_nothing_is_coloured_where_nobody_looks(
    arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    done = madl(*arguments, **environment)

    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("replay", "--example", "vit-train"), ("info",)])
def test_an_output_that_takes_ascii_only_is_enough(arguments: tuple[str, ...]) -> None:
    done = madl(*arguments, PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m madl replay --example vit-train | head -1"

    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=ENVIRONMENT,
    )

    assert done.stderr == ""


def _wait_until_it_reads(pid: int, path: Path) -> None:
    """Return when a process has a file open; before, it is importing."""
    files = Path(f"/proc/{pid}/fd")
    if not files.exists():
        time.sleep(1)
        return
    for _ in range(600):
        with contextlib.suppress(OSError):  # a file may be closed as we look
            if any(file.resolve() == path for file in files.iterdir()):
                return
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
@pytest.mark.parametrize("after_s", [0.0, 0.4])
def test_ctrl_c_ends_without_a_traceback(tmp_path: Path, after_s: float) -> None:
    path = tmp_path / "long.trace"
    lines = b"".join(b"a,%d,%d\nf,%d\n" % (i, i % 3000, i) for i in range(2_000_000))
    path.write_bytes(HEAD + lines)
    process = subprocess.Popen(
        [sys.executable, "-m", "madl", "replay", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=ENVIRONMENT,
    )
    _wait_until_it_reads(process.pid, path)
    time.sleep(after_s)

    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=30)

    assert (process.returncode, output, error.strip()) == (1, "", "Aborted!")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_a_progress_bar_comes_and_goes(trace: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "madl", "replay", "--example", "vit-train"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
        env={**ENVIRONMENT, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert done.returncode == 0
    assert "replaying" in shown
    assert b"replaying" not in done.stdout
