"""What ``madl`` says of itself: its help, its examples, its JSON, its completion."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import madl
from madl.cli import commands
from madl.cli.pages import Command, Page
from madl.diagnostics import example_path, save_snapshot
from tests.command_line import status_of
from tests.pages import ROOT, needs_pages
from tests.pages import commands as commands_of
from tests.torch_dumps import fragmented

PAGE = "docs/how-to/command-line.md"
NAMES = sorted(commands.commands)
NEEDS_PLOTLY = {"view"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with every file that an example of the help names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    with madl.Pool("sim") as pool:
        for name in ("run", "monday", "today"):
            with madl.record(f"{name}.trace.gz"):
                pool.allocate("1 MiB", tag="weights").free()
        held = pool.allocate("1 MiB")
        for name in ("snapshot", "before", "after"):
            save_snapshot(pool.snapshot(), f"{name}.json")
        del held
    for name in ("run", "step10", "step500"):
        Path(f"{name}.pickle").write_bytes(fragmented().pickled())
    return tmp_path


def command_named(name: str) -> Command:
    command = commands.commands[name]
    assert isinstance(command, Command)
    return command


def examples() -> list[list[str]]:
    """Return the arguments of each example that is one quick command of madl's."""
    assert isinstance(commands, Page)
    lines = [*commands.examples]
    for name in NAMES:
        lines += command_named(name).examples
    split = [shlex.split(line, comments=True) for line in lines]
    return [
        words[1:]
        for words in split
        if words[0] == "madl" and words[1] not in {"COMMAND", "bench", "completion"}
    ]


def test_every_command_is_in_a_section_of_the_help() -> None:
    assert isinstance(commands, Page)
    names = {one.name for section in commands.sections.values() for one in section}

    assert names == {*NAMES}


def test_the_help_reads_like_a_page() -> None:
    done = CliRunner().invoke(commands, ["--help"], terminal_width=80)

    headings = re.findall(r"^(\w.*):$", done.output, re.MULTILINE)
    assert isinstance(commands, Page)
    assert headings == ["Options", *commands.sections, "Examples"]
    assert "Exit status: 0" in done.output


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_fits_and_has_an_example(name: str) -> None:
    done = CliRunner().invoke(commands, [name, "--help"], terminal_width=80)

    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(f"madl {name}" in line for line in lines[lines.index("Examples:") :])


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_of_a_command_is_a_sentence(name: str) -> None:
    text = commands.commands[name].get_short_help_str(80)

    assert text.endswith(".")
    assert not text.endswith("...")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("arguments", examples(), ids=shlex.join)
def test_an_example_of_the_help_works(arguments: list[str]) -> None:
    if arguments[0] in NEEDS_PLOTLY:
        pytest.importorskip("plotly")
    assert status_of(*arguments) == 0


JSON_COMMANDS = {
    "bench": ["--device", "sim"],
    "diff": ["before.json", "run.json"],
    "export": ["run.trace.gz", "run.pickle"],
    "info": [],
    "replay": ["run.trace.gz", "--device", "cpu", "--verify"],
    "report": ["run.trace.gz"],
    "view": ["run.trace.gz"],
    "whatif": ["run.trace.gz", "--limit", "1GiB"],
}


def documented(heading: str) -> dict[tuple[str, ...], set[str]]:
    """Return the keys in each row of a table."""
    table = (ROOT / PAGE).read_text("utf-8").partition(f"| {heading} |")[2]
    rows = [line.split("|") for line in table.split("\n\n")[0].splitlines()[2:]]
    return {
        tuple(re.findall(r"`(\w+)`", where)): set(re.findall(r"`(\w+)`", keys))
        for _, where, keys, _ in rows
    }


def first_of(entries: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """Return an entry of a list; of devices ``sim``, which adds no words of its own."""
    found: dict[str, Any] = entries["sim" if isinstance(entries, dict) else 0]
    return found


@needs_pages
def test_the_commands_of_the_page_work() -> None:
    assert {status_of(*arguments) for arguments in commands_of(PAGE)} == {0}


@needs_pages
def test_each_command_that_prints_json_is_documented() -> None:
    with_json = {
        name
        for name in NAMES
        if any("--json" in param.opts for param in commands.commands[name].params)
    }

    assert {name for (name,) in documented("command")} == with_json
    assert with_json == JSON_COMMANDS.keys() == set(NAMES) - {"completion"}


@needs_pages
@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_the_keys_of_json_are_those_of_the_page(
    name: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in NEEDS_PLOTLY:
        pytest.importorskip("plotly")
    with madl.Pool("sim") as pool:
        held = pool.allocate("1 MiB", tag="more")
        save_snapshot(pool.snapshot(), files / "run.json")
        del held

    assert status_of(name, *JSON_COMMANDS[name], "--json") == 0

    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("command")[name,]
    for (command, part), keys in documented("within").items():
        if command == name and found[part]:
            spread = {"median", "least", "most"} if name == "bench" else set()
            assert first_of(found[part]).keys() | spread == keys


@pytest.mark.parametrize("name", ["report", "view", "whatif", "replay"])
@pytest.mark.parametrize("arguments", [[], ["x.trace", "--example", "vit-train"]])
def test_a_file_or_an_example_is_named(
    name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(name, *arguments) == 2
    assert "name either a FILE or an --example" in capsys.readouterr().err


def test_an_example_is_the_file_that_ships_with_madl(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_file = status_of("report", str(example_path("resnet50-train")), "--json")
    of_example = status_of("report", "--example", "resnet50-train", "--json")

    out = capsys.readouterr().out
    assert (of_file, of_example) == (0, 0)
    assert out[: len(out) // 2] == out[len(out) // 2 :]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", ["report", "whatif"])
def test_what_a_pool_would_do_is_said_of_one_that_pools(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("reuse.trace").write_text(
        "# madl-trace v1\na,0,5000000\nf,0\na,1,3000000\na,2,100\n"
    )
    arguments = name, "reuse.trace", "--limit", "1GiB", "--json"
    status_of(*arguments)
    expected = capsys.readouterr().out

    monkeypatch.setenv("MADL_POOL", "off")

    assert status_of(*arguments) == 0
    assert capsys.readouterr().out == expected


def test_replay_says_when_nothing_is_pooled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MADL_POOL", "off")

    assert status_of("replay", "--example", "vit-train", "--json") == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "no pooling"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_madl(shell: str) -> None:
    done = CliRunner().invoke(commands, ["completion", shell])

    assert done.exit_code == 0
    assert f"_MADL_COMPLETE={shell}_complete" in done.output


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("madl re", {"replay", "report"}),
        ("madl report --example v", {"vit-train"}),
        ("madl replay --fit ", {"first", "best"}),
        ("madl bench --device s", {"shared", "sim"}),
        ("madl replay --no", {"--no-recycle"}),
    ],
)
def test_what_is_typed_is_completed(typed: str, expected: set[str]) -> None:
    assert completions(typed, "plain") == expected


@pytest.mark.parametrize("typed", ["madl view ru", "madl diff a b", "madl export a b"])
def test_a_file_is_completed_by_the_shell(typed: str) -> None:
    assert completions(typed, "file") != set()


def completions(typed: str, kind: str) -> set[str]:
    """Return what the script of bash is told; the last word is what is completed."""
    words = typed.split(" ")
    done = CliRunner().invoke(
        commands,
        prog_name="madl",
        env={
            "_MADL_COMPLETE": "bash_complete",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    lines = [line.split(",", 1) for line in done.output.splitlines()]
    return {value for which, value in lines if which == kind}
