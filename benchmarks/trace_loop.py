"""The driver loop of every replay: the same for each contender, timed alone.

A pass is a list of steps ``(slot, nbytes)``; ``nbytes`` is -1 where the handle in the
slot is dropped.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import contenders, recorded
from madl import Pool

Steps = list[tuple[int, int]]


def steps_of(name: str) -> Steps:
    """Return a trace's steps, decoded."""
    trace = recorded.trace(name)
    nbytes_of = trace.nbytes_of
    return [
        (operation, nbytes_of[operation]) if operation >= 0 else (~operation, -1)
        for operation in trace.operations
    ]


def timed_pass(steps: Steps, allocate: Callable[[int], object]) -> int:
    """Return the nanoseconds of CPU time of one pass; what is left live is dropped."""
    held: list[object] = [None] * len(steps)
    clock = time.thread_time_ns
    started = clock()
    for slot, nbytes in steps:
        if nbytes >= 0:
            held[slot] = allocate(nbytes)
        else:
            held[slot] = None
    return clock() - started


def numpy_pass(steps: Steps) -> int:
    """Do the same with ``np.empty``, which has to be told the type."""
    held: list[object] = [None] * len(steps)
    clock = time.thread_time_ns
    empty, uint8 = np.empty, np.uint8
    started = clock()
    for slot, nbytes in steps:
        if nbytes >= 0:
            held[slot] = empty(nbytes, uint8)
        else:
            held[slot] = None
    return clock() - started


def empty_pass(steps: Steps) -> int:
    """Do the same with nothing."""
    held: list[object] = [None] * len(steps)
    clock = time.thread_time_ns
    started = clock()
    for slot, nbytes in steps:
        if nbytes >= 0:
            held[slot] = slot
        else:
            held[slot] = None
    return clock() - started


class Replays:
    """One trace at a time, pass after pass, by one contender; lives in a worker."""

    def __init__(self) -> None:
        self.steps: Steps = []
        self.peak_live_nbytes = 1
        self.pool: Any = None

    def choose(self, name: str, contender: str) -> None:
        """Turn to a trace, with a new pool if the contender has one."""
        self.pool = None
        self.steps = steps_of(name)
        self.peak_live_nbytes = recorded.trace(name).peak_live_nbytes
        if contender in ("cpu", "sim"):
            self.pool = Pool(contender)
        elif contender == "no recycling":
            self.pool = Pool("cpu", recycle=False)
        elif contender == "opencl":
            self.pool = contenders.opencl_pool()

    def ns_per_event(self, contender: str) -> float:
        """Do a pass."""
        if contender == "numpy":
            spent = numpy_pass(self.steps)
        elif contender == "loop":
            spent = empty_pass(self.steps)
        else:
            spent = timed_pass(self.steps, self.pool.allocate)
        return spent / len(self.steps)

    def usage(self) -> tuple[float, int]:
        """Return peak committed over peak live so far, and the pages recycled."""
        stats = self.pool.stats()
        usage = stats.committed_high_water_nbytes / self.peak_live_nbytes
        return usage, stats.recycled_pages


_replays = Replays()
choose, ns_per_event, usage = _replays.choose, _replays.ns_per_event, _replays.usage


def is_mapped(library: str) -> bool:
    """Whether a library is in this process."""
    with open("/proc/self/maps") as maps:
        return library in maps.read()
