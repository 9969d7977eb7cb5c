"""``python -m benchmarks [NAME ...]``: ask, and print the answers as Markdown."""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import machine, plot, verdict
from benchmarks.answer import Answer, Table

NAMES = (
    "pair",
    "recording",
    "index",
    "traces",
    "fill",
    "expressions",
    "numpy_route",
    "threads",
    "bookkeeping",
    "import_time",
    "usage",
    "faults",
    "remap",
    "advice",
)
UNGATED = ("remap", "advice")
STARTED = time.perf_counter()
LONGEST_S = 240
"""After so long nothing is measured again."""
GATE_ATTEMPTS = 4
"""A missed gate is measured again: others use the machine, and its cache, too."""


def main() -> None:
    """Run what the command line asks for; exit 1 when a gate is missed."""
    options = _options()
    facts = machine.header()
    print(machine.markdown(facts), flush=True)
    answers: dict[str, Answer] = {}
    missed = []
    for name in options.names or _all(options.gates):
        started = time.perf_counter()
        answers[name] = _answer(name, quick=options.quick or options.gates)
        if options.gates:
            answers[name] = _again_if_missed(name, answers[name], options.smoke)
            bounds = verdict.missed_gates(name, answers[name])
            missed += [(bound, answers[name]) for bound in bounds]
        else:
            print(f"\n{answers[name].markdown()}", flush=True)
        print(f"\n({name}: {time.perf_counter() - started:.0f} s)", file=sys.stderr)
    promises = verdict.verdicts(answers)
    print(f"\n{promises.markdown()}")
    if options.gates:
        for name, answer in answers.items():
            print("\n".join(f"- {name}: {note}" for note in answer.notes))
    _write(options, facts, answers)
    failed = [verdict.report(*one, is_smoke=options.smoke) for one in missed]
    raise SystemExit(1 if any(failed) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="- for stdout")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="one plot")
    parser.add_argument(
        "--gates", action="store_true", help="compare with the gates, exit 1 on a miss"
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="--gates where others use the machine: a near miss is told, no failure",
    )
    options = parser.parse_args()
    options.gates |= options.smoke
    if unknown := sorted({*options.names} - {*NAMES}):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return options


def _all(gates: bool) -> list[str]:
    return [name for name in NAMES if not (gates and name in UNGATED)]


def _answer(name: str, *, quick: bool) -> Answer:
    answer: Answer = importlib.import_module(f"benchmarks.{name}").run(quick=quick)
    return answer


def _again_if_missed(name: str, answer: Answer, is_smoke: bool) -> Answer:
    for _ in range(GATE_ATTEMPTS - 1):
        missed = verdict.missed_gates(name, answer)
        is_over = time.perf_counter() - STARTED > LONGEST_S
        if is_over or not any(
            verdict.ends_the_run(bound, answer, is_smoke=is_smoke) for bound in missed
        ):
            break
        answer = verdict.best_of(answer, _answer(name, quick=True))
    return answer


def _write(
    options: argparse.Namespace, facts: dict[str, str], answers: dict[str, Answer]
) -> None:
    promises = verdict.verdicts(answers)
    if options.json:
        everything = {
            "machine": facts,
            "answers": {name: answer.as_dict() for name, answer in answers.items()},
            "promises": promises.as_dict()["rows"],
        }
        _put(options.json, json.dumps(everything, indent=1) + "\n")
    if options.markdown:
        parts = [machine.markdown(facts)]
        parts += [answer.markdown() for answer in answers.values()]
        parts.append(f"## Promises\n\n{promises.markdown()}")
        _put(options.markdown, "\n\n".join(parts) + "\n")
    if options.svg:
        for table in _tables(answers.values()):
            if table.is_plotted:
                _put(options.svg, plot.svg(table))
                break


def _tables(answers: Iterable[Answer]) -> list[Table]:
    return [table for answer in answers for table in answer.tables]


def _put(path: Path, text: str) -> None:
    if str(path) == "-":
        print(text, end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
