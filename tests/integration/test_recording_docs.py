"""The code and the commands of the pages on recordings and metrics run as printed."""

from pathlib import Path

import pytest

from tests.command_line import status_of
from tests.pages import blocks, commands, needs_pages, run_here

RECORDINGS = "docs/how-to/record-and-replay.md"
METRICS = "docs/how-to/metrics.md"
pytestmark = needs_pages


def test_the_page_on_recordings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run_here(blocks(RECORDINGS))
    printed = capsys.readouterr().out
    statuses = [status_of(*command) for command in commands(RECORDINGS)]

    assert printed == (
        "1 a journal, of a recording that has not ended: "
        "1 event was written until then\n"
    )
    assert set(statuses) == {0}
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


@pytest.mark.parametrize(
    ("package", "which"), [("prometheus_client", 1), ("opentelemetry.sdk", 2)]
)
def test_the_page_on_metrics(
    package: str, which: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(package)
    code = blocks(METRICS)

    run_here([code[0], code[which]])

    assert len(code) == 3
    assert capsys.readouterr().out == "8388608 8388608\n"
