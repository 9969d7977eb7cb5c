"""Files that anyone may have written: what they name is shown, never opened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from madl import Pool
from madl.diagnostics import save_snapshot
from madl.stacks import Line
from tests.command_line import ENVIRONMENT, status_of
from tests.torch_dumps import Dump

MIB = 1 << 20
AUDITED = """
import json, sys

opened, started = [], []

def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "import"):
        opened.append(repr(arguments[:1]))
    elif event.startswith(("subprocess.", "socket.", "os.system", "os.exec", "webb")):
        started.append(event)

import madl.cli
sys.addaudithook(note)
try:
    madl.cli.main(sys.argv[1:])
except SystemExit as end:
    status = end.code or 0
print(json.dumps([status, opened, started]), file=sys.stderr)
"""
BOLD, LINK = "[bold]x[/]", "[link=https://example.org]y[/link]"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b5n\u202e"
OBEYED = ("\x1b]", "\x1b[2J", "\x1b[31m", "\x07", "\x9b", "\u202e")
MARKUP = f"{BOLD} {LINK} [/nothing] :bomb: \\[ <b>&amp;</b> \\"


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """Return a file that nobody has a reason to open."""
    path = tmp_path / "bait" / "secret.py"
    path.parent.mkdir()
    path.write_text("raise SystemExit('evaluated')")
    return path


def trace_naming(name: str, folder: Path) -> Path:
    path = folder / "named.trace"
    stack = json.dumps([[name, 1, name]])
    lines = ["# madl-trace v1", f"# name: {name}", f"# path: {name}"]
    lines += [f"#s,0,{stack}", f"a,0,{MIB},0,{name.replace(',', ' ')}", f"m,{name}"]
    path.write_text("\n".join([*lines, "f,0", ""]), "utf-8", newline="\n")
    return path


def snapshot_naming(name: str, folder: Path) -> Path:
    path = folder / "named.json"
    with Pool("sim") as pool:
        memory = pool.allocate(MIB, tag="tag")
        save_snapshot(pool.snapshot(), path)
        memory.free()
    document = json.loads(path.read_text("utf-8"))
    document["device"] = name
    for block in document["arenas"][0]["blocks"]:
        if block["state"] == "live":
            block.update(tag=name, stack=[Line(name, 1, name)])
    path.write_text(json.dumps(document), "utf-8")
    return path


def pickle_naming(name: str, folder: Path) -> Path:
    path = folder / "named.pickle"
    name = name.replace(":", ";")  # it ends the name in a dump made by hand
    dump = Dump()
    dump.segment(0, 4 * MIB)
    dump.alloc(0, MIB, f"{name}.py:3")
    dump.fail(8 * MIB, 0, f"{name}.py:4")
    path.write_bytes(dump.pickled())
    return path


MAKERS = {"trace": trace_naming, "snapshot": snapshot_naming, "pickle": pickle_naming}
COMMANDS = {
    "report": ("trace", "snapshot", "pickle"),
    "view": ("trace", "snapshot", "pickle"),
    "whatif": ("trace", "pickle"),
    "replay": ("trace",),
    "diff": ("trace", "snapshot"),
    "export": ("trace", "snapshot"),
}
CASES = [(command, kind) for command, kinds in COMMANDS.items() for kind in kinds]


def arguments_of(command: str, path: Path, folder: Path) -> list[str]:
    if command == "view":
        pytest.importorskip("plotly")
        return [command, str(path), "-o", str(folder / "page.html")]
    if command == "diff":
        before = folder / "before"
        before.mkdir()
        make = MAKERS["trace" if path.suffix == ".trace" else "snapshot"]
        return [command, str(make("before", before)), str(path)]
    if command == "export":
        return [command, str(path), str(folder / "exported.pickle")]
    return [command, str(path)]


@pytest.mark.parametrize(("command", "kind"), CASES)
def test_no_file_that_a_file_names_is_opened(
    command: str, kind: str, bait: Path, tmp_path: Path
) -> None:
    path = MAKERS[kind](str(bait).removesuffix(".py" * (kind == "pickle")), tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", AUDITED, *arguments_of(command, path, tmp_path)],
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        check=False,
    )
    status, opened, started = json.loads(done.stderr.splitlines()[-1])

    assert status == 0, done.stderr
    assert any(path.name in one for one in opened), "nothing is audited"
    assert not [one for one in opened if bait.parent.name in one]
    assert started == []


@pytest.mark.parametrize(("command", "kind"), CASES)
def test_names_are_text_in_a_terminal(
    command: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    name = MARKUP if kind == "snapshot" else MARKUP + ESCAPE  # it may have no escapes
    path = MAKERS[kind](name, tmp_path)

    status = status_of(*arguments_of(command, path, tmp_path))

    shown = "".join(capsys.readouterr())
    assert status == 0, shown
    assert not [one for one in OBEYED if one in shown]
    if command in ("report", "diff") and kind != "pickle":
        assert f"{BOLD} {LINK} [/nothing] :bomb:" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="names cannot have escapes")
@pytest.mark.parametrize("command", ["report", "replay", "whatif", "view"])
def test_the_name_of_a_broken_file_is_text_as_well(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"x{ESCAPE}.trace"
    path.write_bytes(b"# madl-trace v1\nx,1\n")

    status = status_of(command, str(path))

    shown = capsys.readouterr().err
    assert status == 1
    assert "a record must start with" in shown
    assert not [one for one in ("\x1b", *OBEYED) if one in shown]


def test_a_snapshot_with_names_that_are_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = status_of("report", str(snapshot_naming(ESCAPE, tmp_path)))

    shown = capsys.readouterr().err
    assert status == 1
    assert '"device" must be a printable text' in shown
    assert "\x1b" not in shown
