"""What does it cost to allocate, fill and free a large block on the host?"""

import ctypes
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import numpy as np

from benchmarks.answer import Answer, Cell, Table
from benchmarks.timing import in_turns, ratio, spread
from benchmarks.worker import Worker
from madl import Pool
from madl.sizes import format_nbytes

SIZES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
FILLS = 5
"""In a row, of which the median counts: a round must not be one fault's."""
HELD, MADL, NUMPY = "one held buffer", "madl", "NumPy"
NUMPY_SMALL_PAGES = "NumPy without huge pages"


def block_ns(kind: str, nbytes: int) -> float:
    """Return what a fill takes on the clock; called in a worker."""
    if (kind, nbytes) not in _fills:
        _fills.clear()  # the last size's memory goes first
        _fills[kind, nbytes] = _KINDS[kind](nbytes)
    fill = _fills[kind, nbytes]
    fill()
    spent = []
    for _ in range(FILLS):
        started = time.perf_counter_ns()
        fill()
        spent.append(time.perf_counter_ns() - started)
    return median(spent)


def _held(nbytes: int) -> Callable[[], object]:
    buffer = np.zeros(nbytes, np.uint8)
    address = buffer.ctypes.data

    def fill() -> int:
        ctypes.memset(address, 1, nbytes)
        return buffer.nbytes  # which keeps it

    return fill


def _madl(nbytes: int) -> Callable[[], object]:
    pool = Pool("cpu")

    def fill() -> None:
        memory = pool.allocate(nbytes)
        memory.fill(1)
        memory.free()

    return fill


def _numpy(nbytes: int) -> Callable[[], object]:
    def fill() -> None:
        array = np.empty(nbytes, np.uint8)
        array.fill(1)
        del array

    return fill


_KINDS = {HELD: _held, MADL: _madl, NUMPY: _numpy, NUMPY_SMALL_PAGES: _numpy}
_fills: dict[tuple[str, int], Callable[[], object]] = {}


def run(*, quick: bool) -> Answer:
    """Fill in turns, each contender in a process of its own."""
    with ExitStack() as stack:
        workers = {
            kind: stack.enter_context(
                Worker(NUMPY_MADVISE_HUGEPAGE="0")
                if kind == NUMPY_SMALL_PAGES
                else Worker()
            )
            for kind in _KINDS
        }
        # At 256 MB NumPy faults for seconds, and no gate asks for it.
        kinds_at = {
            size: [HELD, MADL] if quick and size > 64 << 20 else [*_KINDS]
            for size in SIZES
        }
        results = {
            size: _at({kind: workers[kind] for kind in kinds}, size, 7 if quick else 15)
            for size, kinds in kinds_at.items()
        }
    columns = tuple(format_nbytes(size) for size in SIZES)
    microseconds: dict[str, list[Cell]] = {kind: [] for kind in _KINDS}
    over: dict[str, list[Cell]] = {kind: [] for kind in _KINDS}
    for result in results.values():
        for kind in _KINDS:
            spent = result.get(kind)
            in_us = spread([ns / 1e3 for ns in spent]) if spent else None
            microseconds[kind].append(in_us)
            over[kind].append(ratio(spent, result[MADL]) if spent else None)
    return Answer(
        "What does it cost to allocate, fill and free a large block on the host?",
        (
            Table(
                "us on the clock, median (least-most)",
                ("", *columns),
                tuple((kind, *row) for kind, row in microseconds.items()),
            ),
            Table(
                "as a multiple of madl in the same round",
                ("", *columns),
                tuple((kind, *row) for kind, row in over.items()),
            ),
        ),
        _figures(results),
        (
            "Up to 32 MB the C library keeps freed blocks warm too: expect no gain.",
            "Without huge pages: NUMPY_MADVISE_HUGEPAGE=0.",
        ),
    )


def _figures(results: dict[int, dict[str, list[float]]]) -> dict[str, float]:
    at_64 = results[64 << 20]
    return {
        "over refilling one held buffer": max(
            ratio(result[MADL], result[HELD]).median for result in results.values()
        ),
        "NumPy over it, 64 MB": ratio(at_64[NUMPY], at_64[MADL]).median,
        f"{NUMPY_SMALL_PAGES} over it, 64 MB": ratio(
            at_64[NUMPY_SMALL_PAGES], at_64[MADL]
        ).median,
    }


def _at(workers: dict[str, Worker], nbytes: int, rounds: int) -> dict[str, list[float]]:
    call = f"{__name__}:block_ns"
    measures: dict[str, Callable[[], float]] = {
        kind: lambda kind=kind, worker=worker: worker.call(call, kind, nbytes)  # type: ignore[misc]
        for kind, worker in workers.items()
    }
    return in_turns(measures, rounds=rounds)
