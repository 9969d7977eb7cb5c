"""Rounds in turns: whatever disturbs the machine disturbs every contender."""

import time
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import NamedTuple


class Spread(NamedTuple):
    """What the rounds gave: the middle, the least and the most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{shown(self.median)} ({shown(self.low)}-{shown(self.high)})"


def shown(value: float) -> str:
    """Return a number with three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of the rounds."""
    return Spread(median(values), min(values), max(values))


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of a ratio, each round's figures divided by each other."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean, the one that suits ratios."""
    return exp(fmean(log(value) for value in values))


def in_turns(
    measures: Mapping[str, Callable[[], float]], *, rounds: int
) -> dict[str, list[float]]:
    """Return each measure's figures; every round takes each of them once."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for measure in measures.values():
        measure()  # warm
    for _ in range(rounds):
        for name, measure in measures.items():
            figures[name].append(measure())
    return figures


def cpu_ns(loop: Callable[[int], object], *, lasting_ns: int, most: int) -> float:
    """Return nanoseconds of this thread's CPU time for one of a loop's turns.

    Args:
        loop: Called with the number of turns.
        lasting_ns: About how long to measure.
        most: Turns, however short they are.
    """
    clock = time.thread_time_ns
    loop(1)  # warm: the size may be new to a pool
    started = clock()
    loop(1)
    once = max(clock() - started, 1)
    count = min(max(lasting_ns // once, 1), most)
    started = clock()
    loop(count)
    return (clock() - started) / count
