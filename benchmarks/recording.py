"""What does a pair cost while it is recorded?"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import benchmarks.contenders as make
from benchmarks.answer import Answer, Row, Table
from benchmarks.timing import in_turns, ratio, spread
from madl import Pool
from madl.diagnostics.recording import Recorder
from madl.diagnostics.traces.journal import Journal
from madl.sizes import format_nbytes

SIZES = (512, 1 << 20)
PAIRS = 20_000
"""More than twice what the journal's ring has room for, so that emptying it counts."""
PAIRS_WITH_STACKS = 500
PLAIN, RECORDED, STACKS = "not recorded", "recorded", "recorded, stacks=4"
FIGURE = "recorded over not recorded"


def run(*, quick: bool) -> Answer:
    """Let recordings listen in turns, each for a round."""
    rounds = 9 if quick else 15
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        results = {size: _round(Path(folder), stack, size, rounds) for size in SIZES}
    costs: list[Row] = [
        (name, *(spread(results[size][name]) for size in SIZES))
        for name in (PLAIN, RECORDED, STACKS)
    ]
    over = {
        name: [ratio(results[size][name], results[size][PLAIN]) for size in SIZES]
        for name in (RECORDED, STACKS)
    }
    columns = tuple(format_nbytes(size) for size in SIZES)
    figures = {}
    if Journal.hears_pools:
        figures[FIGURE] = max(one.median for one in over[RECORDED])
    return Answer(
        "What does a pair cost while it is recorded?",
        (
            Table("ns a pair, median (least-most)", ("", *columns), tuple(costs)),
            Table(
                "as a multiple of what it costs unrecorded, in the same round",
                ("", *columns),
                tuple((name, *row) for name, row in over.items()),
            ),
        ),
        figures,
        (
            "CPU time of the thread, writing to the file system included; the empty "
            "loop, about 10 ns, is in every figure.",
        ),
    )


def _round(
    folder: Path, stack: ExitStack, nbytes: int, rounds: int
) -> dict[str, list[float]]:
    pairs = make.freeing(Pool("cpu").allocate)

    def ns(count: int) -> float:
        started = time.thread_time_ns()
        pairs(nbytes, count)
        return (time.thread_time_ns() - started) / count

    measures: dict[str, Callable[[], float]] = {PLAIN: lambda: ns(PAIRS)}
    for name, depth in {RECORDED: 0, STACKS: 4}.items():
        path = folder / f"{nbytes}.{depth}.trace.gz"
        recorder = Recorder(path, name="pairs", depth=depth)
        stack.callback(recorder.finish)
        count = PAIRS_WITH_STACKS if depth else PAIRS
        measures[name] = partial(_while, recorder, partial(ns, count))
    return in_turns(measures, rounds=rounds)


def _while(recorder: Recorder, measure: Callable[[], float]) -> float:
    with recorder.listening():
        return measure()
