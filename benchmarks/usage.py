"""How much does a pool commit for a trace, as a multiple of its peak live bytes?"""

import time
from collections.abc import Callable

from benchmarks import recorded
from benchmarks.answer import Answer, Row, Table
from benchmarks.timing import geomean
from benchmarks.trace_loop import Steps, steps_of, timed_pass
from madl import OutOfMemoryError, Pool
from madl.backends.sim import SimBackend
from madl.sizes import format_nbytes

DEFAULT, DEFAULT_3 = "2 MiB pages, the default", "the same, three passes"
MIXED, MIXED_3 = "256 KiB (host) or 2 MiB", "mixed, three passes"
SMALL, BARE = "64 KiB pages (host)", "no COMMIT"
CAPACITY, BEST, FIXED = "smallest capacity", "best fit", "no recycling"
SPEED = "ns an event, sim, third pass"
RESOLUTION = 2000
"""The smallest capacity is found to so many parts of the peak."""


def run(*, quick: bool) -> Answer:
    """Replay every trace in every configuration; it takes no longer when thorough."""
    rows = {name: _row(name) for name in recorded.paths()}
    columns = (DEFAULT, DEFAULT_3, MIXED, MIXED_3, SMALL, BARE, CAPACITY, BEST, FIXED)
    known = {
        column: [row[column] for row in rows.values() if column in row]
        for column in columns
    }
    table_rows: list[Row] = [
        (
            name,
            format_nbytes(recorded.trace(name).peak_live_nbytes),
            *(_digits(row.get(column)) for column in columns),
            row[SPEED],
        )
        for name, row in rows.items()
    ]
    table_rows += [
        ("geomean", "", *(_digits(geomean(known[column])) for column in columns), ""),
        ("worst", "", *(_digits(max(known[column])) for column in columns), ""),
    ]
    table = Table(
        "peak committed / peak live; the smallest capacity that completes / peak live",
        ("trace", "peak live", *columns, SPEED),
        tuple(table_rows),
    )
    figures = {f"{column}, geomean": geomean(known[column]) for column in columns}
    figures |= {f"{column}, worst": max(known[column]) for column in columns}
    return Answer(
        "How much does a pool commit for a trace?",
        (table,),
        figures,
        (
            recorded.note(),
            "Device sim. The smallest capacity is a limit found by bisection between "
            "the peak and what the default commits.",
        ),
    )


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _row(name: str) -> dict[str, float]:
    steps = steps_of(name)
    peak = recorded.trace(name).peak_live_nbytes
    is_host = recorded.is_host(name)

    def over(pool: Pool) -> float:
        timed_pass(steps, pool.allocate)
        return pool.stats().committed_high_water_nbytes / peak

    pool = Pool("sim")
    row = {DEFAULT: over(pool)}
    over(pool)
    started = time.thread_time_ns()
    row[DEFAULT_3] = over(pool)
    row[SPEED] = (time.thread_time_ns() - started) / len(steps)
    pool = Pool("sim", page_size="256 KiB" if is_host else "2 MiB")
    row[MIXED] = over(pool)
    over(pool)
    row[MIXED_3] = over(pool)
    if is_host:
        row[SMALL] = over(Pool("sim", page_size="64 KiB"))
    row[BARE] = over(Pool(SimBackend(commits=False)))
    row[BEST] = over(Pool("sim", fit="best"))
    row[FIXED] = over(Pool("sim", recycle=False))
    enough = int(row[DEFAULT] * peak)
    row[CAPACITY] = _smallest(steps, peak, enough) / peak
    return row


def _smallest(steps: Steps, peak: int, enough: int) -> int:
    """Return a limit that suffices while one that is a little lower does not."""
    if _completes(steps, peak):
        return peak
    too_low = peak
    while enough - too_low > peak // RESOLUTION:
        middle = (enough + too_low) // 2
        if _completes(steps, middle):
            enough = middle
        else:
            too_low = middle
    return enough


def _completes(steps: Steps, limit: int) -> bool:
    allocate: Callable[[int], object] = Pool("sim", limit=limit).allocate
    try:
        timed_pass(steps, allocate)
    except OutOfMemoryError:
        return False
    return True
