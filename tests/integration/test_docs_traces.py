"""The code and the commands of the pages on recordings and metrics run as printed."""

import re
from pathlib import Path

import pytest

from madl import cli

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(
    not DOCS.exists(), reason="tests run without the documentation"
)


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_page_on_recordings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("how-to/record-and-replay.md", "python")
    commands = "".join(blocks("how-to/record-and-replay.md", "console")).splitlines()
    names: dict[str, object] = {}

    for block in code:
        exec(block, names)
    printed = capsys.readouterr().out
    statuses = [_status(command) for command in commands]

    assert (len(code), len(commands)) == (4, 7)
    assert printed == (
        "1 a journal, of a recording that has not ended: "
        "1 events were written until then\n"
    )
    assert statuses == 7 * [0]
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.trace.gz",
        "lines.trace.gz",
        "killed.trace.gz",
        "rescued.trace.gz",
        "before.json",
        "after.json",
        "after.pickle",
        "run.pickle",
        "run.json",
    }
    names.clear()


def _status(command: str) -> int:
    program, *arguments = command.split()
    assert program == "madl"
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("package", "which"), [("prometheus_client", 1), ("opentelemetry.sdk", 2)]
)
def test_the_page_on_metrics(
    package: str, which: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(package)
    code = blocks("how-to/metrics.md", "python")
    names: dict[str, object] = {}

    exec(code[0], names)
    exec(code[which], names)

    assert len(code) == 3
    assert capsys.readouterr().out == "8388608 8388608\n"
    names.clear()
