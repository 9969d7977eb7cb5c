"""The code of the how-tos about looking at memory, and wiping it, runs as printed."""

from pathlib import Path

import pytest

from tests.command_line import status_of
from tests.pages import blocks, commands, needs_pages, run_here
from tests.torch_dumps import fragmented

SEE = "docs/how-to/see-memory.md"
READ = "docs/how-to/read-a-pytorch-snapshot.md"
WIPE = "docs/how-to/wipe-memory.md"
pytestmark = needs_pages


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_see_memory(capsys: pytest.CaptureFixture[str]) -> None:
    run_here(blocks(SEE))

    live, figures, ratio, *_ = capsys.readouterr().out.splitlines()
    assert live == str((8 + 6 * 2) << 20)
    assert figures == f"{live} ['activations', 'weights']"
    assert 0 <= float(ratio) <= 1


def test_the_commands_to_see_memory() -> None:
    pytest.importorskip("plotly")
    run_here(blocks(SEE))

    statuses = [status_of(*command) for command in commands(SEE)]

    assert statuses == [0, 0]
    assert "<html" in Path("run.html").read_text("utf-8")


def test_read_a_pytorch_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.pickle").write_bytes(fragmented().pickled())

    run_here(blocks(READ))

    _, export, holder = capsys.readouterr().out.splitlines()
    assert export == "expandable_segments:True"
    assert holder == f"{14 << 20} model.py:20 (step)"


def test_the_command_to_read_a_pytorch_snapshot() -> None:
    Path("run.pickle").write_bytes(fragmented().pickled())

    assert [status_of(*command) for command in commands(READ)] == [0]


def test_wipe_memory() -> None:
    run_here(blocks(WIPE))
