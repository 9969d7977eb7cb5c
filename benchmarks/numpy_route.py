"""What do NumPy's arrays cost when they come from a pool?"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.answer import Answer, Row, Table
from benchmarks.timing import cpu_ns, in_turns, ratio, spread
from madl import MissingCapabilityError, Pool
from madl.integrations.numpy import Route, route

QUESTION = "What do NumPy's arrays cost when they come from a pool?"
DEFAULT, MADL = "NumPy", "NumPy over a pool"
SMALL, LARGE = 64, 64 << 20
LASTING_NS = 20_000_000
TASKS = ("np.empty, 64 B", "np.empty, 64 MB", "a * b + c, 64 MB", "np.zeros, 64 MB")
"""Zeros are written to once by the task, as they would be by its program."""


def run(*, quick: bool) -> Answer:
    """Make arrays with and without a route, in turns."""
    try:
        inside = route(pool=Pool("cpu"))
    except MissingCapabilityError as error:
        return Answer(QUESTION, (), {}, (f"not measured: {error}",))
    rounds = 9 if quick else 25
    results = {task: _at(task, inside, rounds) for task in TASKS}
    over = {
        task: ratio(result[DEFAULT], result[MADL]) for task, result in results.items()
    }
    rows: list[Row] = [
        (name, *(spread(result[name]) for result in results.values()))
        for name in (DEFAULT, MADL)
    ]
    rows.append((f"{DEFAULT} over it", *over.values()))
    small = results[TASKS[0]]
    return Answer(
        QUESTION,
        (Table("ns, median (least-most)", ("", *TASKS), tuple(rows)),),
        {
            "over NumPy's own, 64 B": ratio(small[MADL], small[DEFAULT]).median,
            "np.empty over it, 64 MB": over[TASKS[1]].median,
            "a * b + c over it, 64 MB": over[TASKS[2]].median,
        },
        (
            "np.empty without what its first writes cost: the other columns have it.",
            "np.zeros writes its zeros at once over a pool; the operating system does "
            "it page by page, for what is touched.",
        ),
    )


def _at(task: str, inside: Route, rounds: int) -> dict[str, list[float]]:
    measure = _measure(task)

    def routed() -> float:
        with inside:
            return measure()

    return in_turns({DEFAULT: measure, MADL: routed}, rounds=rounds)


def _measure(task: str) -> Callable[[], float]:
    if task.startswith("np.empty"):
        nbytes = SMALL if "64 B" in task else LARGE
        return lambda: cpu_ns(
            partial(_empties, nbytes), lasting_ns=LASTING_NS, most=100_000
        )
    if task.startswith("np.zeros"):
        return lambda: _clock_ns(lambda: np.zeros(LARGE, np.uint8).fill(1))
    a, b, c = (np.full(LARGE // 8, value, np.float64) for value in (1, 2, 3))
    return lambda: _clock_ns(lambda: a * b + c)


def _empties(nbytes: int, count: int) -> None:
    empty, uint8 = np.empty, np.uint8
    for _ in range(count):
        empty(nbytes, uint8)


def _clock_ns(task: Callable[[], Any]) -> float:
    """Return the quickest of three: a round must not be somebody else's pause."""
    spent = []
    for _ in range(3):
        started = time.perf_counter_ns()
        task()
        spent.append(time.perf_counter_ns() - started)
    return min(spent)
