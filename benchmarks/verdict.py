"""Figures beside what is promised of them."""

from collections.abc import Mapping

from benchmarks.answer import Answer, Row, Table
from benchmarks.bounds import BOUNDS, Bound
from benchmarks.timing import shown

FAR = 1.3
_WORDS = {True: "PASS", False: "FAIL", None: "-"}


def verdicts(answers: Mapping[str, Answer]) -> Table:
    """Return every bound of the benchmarks that ran, met or not."""
    rows: list[Row] = []
    for bound in BOUNDS:
        if bound.benchmark not in answers:
            continue
        value = answers[bound.benchmark].figures.get(bound.figure)
        sign = ">=" if bound.is_least else "<="
        limits = [
            "-" if limit is None else f"{sign} {shown3(limit)}"
            for limit in (bound.target, bound.gate)
        ]
        rows.append(
            (
                f"{bound.benchmark}: {bound.figure}",
                "not measured" if value is None else shown3(value),
                limits[0],
                "-" if value is None else _WORDS[bound.holds(value, bound.target)],
                limits[1],
                "SKIP" if value is None else _WORDS[bound.holds(value, bound.gate)],
            )
        )
    columns = ("figure", "measured", "target", "met", "gate", "passed")
    return Table("what is promised, and what was measured", columns, tuple(rows))


def missed_gates(benchmark: str, answer: Answer) -> list[Bound]:
    """Return the gates that a benchmark's figures miss; what is absent misses none."""
    return [
        bound
        for bound in BOUNDS
        if bound.benchmark == benchmark
        and bound.figure in answer.figures
        and bound.holds(answer.figures[bound.figure], bound.gate) is False
    ]


def is_far(bound: Bound, answer: Answer) -> bool:
    """Whether a gate is missed by more than any other program could explain."""
    assert bound.gate is not None, "only a gate can be missed"
    nearer = bound.gate / FAR if bound.is_least else bound.gate * FAR
    return bound.holds(answer.figures[bound.figure], nearer) is False


def ends_the_run(bound: Bound, answer: Answer, *, is_smoke: bool) -> bool:
    """Whether a missed gate is a failure: it is not known, and in a smoke test far."""
    return not bound.why_missed and (not is_smoke or is_far(bound, answer))


def report(bound: Bound, answer: Answer, *, is_smoke: bool) -> bool:
    """Print what is to be said of a missed gate; return whether it ends the run."""
    name = f"{bound.benchmark}: {bound.figure}"
    if ends_the_run(bound, answer, is_smoke=is_smoke):
        print(f"FAIL {name}")
        return True
    if bound.why_missed:
        print(f"KNOWN {name}: {bound.why_missed}")
    else:
        print(f"NEAR {name}: {shown3(answer.figures[bound.figure])}")
    return False


def best_of(first: Answer, second: Answer) -> Answer:
    """Return the second answer with the better figure of both for every bound."""
    figures = dict(second.figures)
    for bound in BOUNDS:
        if bound.figure in first.figures and bound.figure in figures:
            pair = (first.figures[bound.figure], figures[bound.figure])
            figures[bound.figure] = max(pair) if bound.is_least else min(pair)
    return Answer(second.question, second.tables, figures, second.notes)


def shown3(value: float) -> str:
    """Return a ratio near 1 with the digits that matter there."""
    return f"{value:.3f}" if 0.1 < value < 2 else shown(value)
