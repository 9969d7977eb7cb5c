"""The code of the how-tos about looking at memory runs as it is printed."""

import re
from pathlib import Path

import pytest

from tests.torch_dumps import fragmented

DOCS = Path(__file__).parents[2] / "docs" / "how-to"

pytestmark = pytest.mark.skipif(
    not DOCS.exists(), reason="tests run without the documentation"
)


def run_blocks(page: str) -> int:
    """Run the Python of a page, all in one namespace; return how many blocks it has."""
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    return len(blocks)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_see_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_blocks("see-memory.md") == 3

    live, figures, ratio, *_ = capsys.readouterr().out.splitlines()
    assert live == str((8 + 6 * 2) << 20)
    assert figures == f"{live} ['activations', 'weights']"
    assert 0 <= float(ratio) <= 1


def test_read_a_pytorch_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.pickle").write_bytes(fragmented().pickled())

    assert run_blocks("read-a-pytorch-snapshot.md") == 1

    _, export, holder = capsys.readouterr().out.splitlines()
    assert export == "expandable_segments:True"
    assert holder == f"{14 << 20} model.py:20 (step)"
