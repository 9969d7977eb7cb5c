"""Does recycling pages buy usage with page faults?"""

import resource
import time

from benchmarks import recorded
from benchmarks.answer import Answer, Row, Table
from benchmarks.trace_loop import Steps, steps_of
from benchmarks.worker import Worker
from madl import Pool

NAMES = ("c_gpt2_train", "c_unet_diff", "c_dataloader")
EXAMPLES = ("gpt2-train",)
"""Where the recorded traces are not."""
PASSES = 3
ALLOWANCE = 100
"""Faults in a pass that are the interpreter's own."""


def passes(name: str, recycle: bool, count: int) -> list[tuple[int, float]]:
    """Replay a trace, writing every byte; called in a worker.

    Returns:
        For each pass its page faults, and its seconds.
    """
    steps = steps_of(name)
    with Pool("cpu", recycle=recycle) as pool:
        return [_touched(steps, pool) for _ in range(count)]


def _touched(steps: Steps, pool: Pool) -> tuple[int, float]:
    allocate = pool.allocate
    held: list[object] = [None] * len(steps)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    started = time.perf_counter()
    for slot, nbytes in steps:
        if nbytes >= 0:
            held[slot] = memory = allocate(nbytes)
            memory.fill(1)
            del memory
        else:
            held[slot] = None
    seconds = time.perf_counter() - started
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults, seconds


def run(*, quick: bool) -> Answer:
    """Count the faults of each pass, with recycling and without."""
    count = 2 if quick else PASSES
    names = [name for name in (*NAMES, *EXAMPLES) if name in recorded.paths()]
    rows: list[Row] = []
    ratios = []
    for name in names:
        counted = {}
        for recycle in (True, False):
            with Worker() as worker:
                counted[recycle] = worker.call(
                    f"{__name__}:passes", name, recycle, count
                )
            word = "recycling" if recycle else "no recycling"
            faults = [count for count, _ in counted[recycle]]
            seconds = [round(lasted, 2) for _, lasted in counted[recycle]]
            rows.append((f"{name}, {word}", *faults, *seconds))
        ratios += [
            (of + ALLOWANCE) / (without + ALLOWANCE)
            for (of, _), (without, _) in zip(
                counted[True][1:], counted[False][1:], strict=True
            )
        ]
    columns = [
        *(f"faults, pass {i}" for i in range(1, count + 1)),
        *(f"seconds, pass {i}" for i in range(1, count + 1)),
    ]
    return Answer(
        "Does recycling pages buy usage with page faults?",
        (Table("device cpu, every byte written", ("trace", *columns), tuple(rows)),),
        {"faults a warm pass over those without recycling": max(ratios)},
        (
            recorded.note(),
            f"{ALLOWANCE} faults a pass are added on both sides of the ratio.",
        ),
    )
