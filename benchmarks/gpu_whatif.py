"""How far are the models of PyTorch's allocator off? A GPU tells.

``python -m benchmarks.gpu_whatif`` runs it.

Programs run on a GPU with several settings, each in a process of its own. What PyTorch
reserved at most is held against the model of those settings: on the trace of the same
run, and on that of the run with PyTorch's defaults, which is how ``madl whatif`` uses
it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.answer import Answer, Row, Table
from benchmarks.gpu_programs import PROGRAMS
from madl.diagnostics.histories import past_of
from madl.diagnostics.torch.models.settings import settings_of_text
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from madl.diagnostics.whatif import CANDIDATES, DEFAULTS, peak_reserved
from madl.sizes import format_nbytes

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Of PyTorch 2.9, and of those before."""


class Run(NamedTuple):
    """One run of a program."""

    snapshot: bytes
    reserved_nbytes: int
    """What PyTorch says it reserved at most."""


def answer_of(runs: Mapping[str, Mapping[str, Run]], notes: list[str]) -> Answer:
    """Return how far the models are off.

    Args:
        runs: By program, then by settings as ``PYTORCH_ALLOC_CONF`` has them; the
            empty text is PyTorch's defaults.
        notes: What could not be run, and why.
    """
    tables, figures = [], {}
    for program, of_program in runs.items():
        rows = list(_rows(of_program))
        title = f"{program}: peak reserve, and the models' error"
        columns = ("settings", "measured", "on its own trace", "on the defaults' trace")
        tables.append(Table(title, columns, tuple(map(_shown, rows))))
        for settings, _, *errors in rows:
            key = f"{program}, {settings}"
            figures[key] = max(abs(error) for error in errors if error is not None)
    question = "How far are the models of PyTorch's allocator off?"
    return Answer(question, tuple(tables), figures, tuple(notes))


def _rows(
    runs: Mapping[str, Run],
) -> Iterator[tuple[str, int, float | None, float | None]]:
    """Yield settings, measured bytes, and both errors; None where there is no run."""
    defaults = runs.get("")
    for text, run in runs.items():
        measured = run.reserved_nbytes
        predicted = None if defaults is None else _error(defaults, text, measured)
        yield text or DEFAULTS, measured, _error(run, text, measured), predicted


def _error(run: Run, settings: str, measured: int) -> float:
    """Return by how much a model is off, as a part of what was measured."""
    trace = past_of(read_torch_snapshot(run.snapshot)).trace
    modelled = peak_reserved(trace, settings_of_text(settings))
    assert modelled is not None, "nothing limits it"
    return modelled / measured - 1


def _shown(row: tuple[str, int, float | None, float | None]) -> Row:
    name, measured, *errors = row
    shown = (None if error is None else f"{error:+.2%}" for error in errors)
    return (name, format_nbytes(measured), *shown)


def run_all() -> tuple[dict[str, dict[str, Run]], list[str]]:
    """Run every program with every setting; return the runs, and what did not run."""
    runs: dict[str, dict[str, Run]] = {}
    notes = []
    for program in PROGRAMS:
        for settings in CANDIDATES:  # the defaults first: without them, none works
            text = settings.as_text()
            try:
                done = _run(program, text)
            except RuntimeError as error:
                notes.append(f"{program}, {text or DEFAULTS}: not measured: {error}")
                if not text:
                    break
            else:
                runs.setdefault(program, {})[text] = done
    return runs, notes


def _run(program: str, settings: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "snapshot.pickle")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_programs", program, str(file)],
            env=os.environ | dict.fromkeys(VARIABLES, settings),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or "it failed").splitlines()[-1])
        reserved = json.loads(done.stdout.splitlines()[-1])["reserved_nbytes"]
        return Run(file.read_bytes(), int(reserved))


def main() -> None:
    """Print the answer as Markdown, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_whatif")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    answer = answer_of(*run_all())
    print(answer.markdown())
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(answer.as_dict(), indent=1) + "\n")


if __name__ == "__main__":
    main()
