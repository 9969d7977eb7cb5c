"""The benchmarks run; whether what they promise holds is for ``tox -e gates``."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch_dumps import MIB, fragmented

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the benchmarks be imported, which no install has."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def test_a_benchmark_prints_its_table() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "import_time", "--quick", "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "| import madl" in run.stdout, run.stderr


@pytest.mark.usefixtures("checkout")
def test_the_models_are_held_against_what_was_reserved() -> None:
    from benchmarks.gpu_whatif import Run, answer_of

    snapshot = fragmented().pickled()
    runs = {"": Run(snapshot, 80 * MIB), "max_split_size_mb:64": Run(snapshot, MIB)}

    found = answer_of({"a program": runs}, ["another: not measured: no GPU"])

    assert [row[1] for row in found.tables[0].rows] == ["80.0 MiB", "1.0 MiB"]
    assert found.figures["a program, PyTorch's defaults"] == pytest.approx(0.1)
    assert "another: not measured: no GPU" in found.markdown()


def test_without_a_gpu_each_program_says_why_it_was_not_measured() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_whatif"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert run.stdout.count("not measured: ") == 2
