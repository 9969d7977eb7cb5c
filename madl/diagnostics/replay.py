"""Replay a trace through a pool: committed memory, and time for each event.

The loop is the one a program runs: a handle made for each allocation, and dropped for
each free. Only the loop is timed; its own cost, without a pool, is measured beside it.
"""

import contextlib
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from madl.diagnostics.traces.lines import printable
from madl.diagnostics.traces.trace import Trace
from madl.errors import FileFormatError, OutOfMemoryError
from madl.hotpath import Memory
from madl.pool import Pool
from madl.pool.stats import PoolSnapshot, PoolStats
from madl.sizes import format_nbytes

_PROGRESS_STEPS = 100
TOUCH_BYTE = 0xA5


@dataclass(frozen=True, slots=True)
class Replay:
    """One pass of a trace through a pool."""

    peak_live_nbytes: int
    peak_committed_nbytes: int
    seconds: float
    ns_per_event: float
    loop_ns_per_event: float
    """The same loop without a pool; it is part of ``ns_per_event``."""
    stats: PoolStats
    """When the trace ended, before what it left live was freed."""
    at_peak: PoolSnapshot
    """When the most bytes were live."""

    @property
    def committed_over_live(self) -> float:
        """Peak committed over peak live bytes; 1 is the least possible."""
        if self.peak_live_nbytes == 0:
            return 1.0
        return self.peak_committed_nbytes / self.peak_live_nbytes


def replay(
    trace: Trace,
    pool: Pool,
    *,
    touch: bool = False,
    on_progress: Callable[[int], object] = lambda events: None,
) -> Replay:
    """Replay a trace.

    Args:
        trace: What to allocate and free. Streams are ignored: the pool has one.
        pool: A new pool: figures are a pool's since it was made.
        touch: Write to every byte of every block.
        on_progress: Called now and then with the events done since the last call.

    Raises:
        OutOfMemoryError: The trace needs more than the pool may commit. What was
            allocated until then has been freed.
        FileFormatError: It asks for more than this machine can address; likewise.
        ValueError: The pool has live memory.
    """
    if pool.stats().live_nbytes:
        raise ValueError(f"replay needs a pool without live memory, got {pool!r}")
    held: list[Memory | None] = [None] * trace.allocations
    allocate = _allocator(trace, pool, touch=touch)
    peak_at, events = trace.peak_position, len(trace)
    step = max(events // _PROGRESS_STEPS, 1)
    edges = sorted({*range(0, events, step), peak_at, events})
    at_peak = pool.snapshot()
    nanoseconds = 0
    try:
        with addressable(trace), placing(trace, pool):
            for first, stop in pairwise(edges):
                operations = trace.operations[first:stop]
                nanoseconds += _timed(operations, held, allocate)
                if stop == peak_at:
                    at_peak = pool.snapshot()
                on_progress(stop - first)
        stats = pool.stats()
    finally:
        held.clear()  # an error's traceback pins this frame
    events = max(events, 1)
    return Replay(
        peak_live_nbytes=stats.live_high_water_nbytes,
        peak_committed_nbytes=stats.committed_high_water_nbytes,
        seconds=nanoseconds / 1e9,
        ns_per_event=nanoseconds / events,
        loop_ns_per_event=_empty_loop_ns(trace) / events,
        stats=stats,
        at_peak=at_peak,
    )


def _timed(
    operations: "array[int]",
    held: list[Memory | None],
    allocate: Callable[[int], Memory | None],
) -> int:
    clock = time.perf_counter_ns
    started = clock()
    for operation in operations:
        if operation >= 0:
            held[operation] = allocate(operation)
        else:
            held[~operation] = None
    return clock() - started


def _allocator(
    trace: Trace, pool: Pool, *, touch: bool
) -> Callable[[int], Memory | None]:
    """Return what makes the memory of an allocation id."""
    nbytes_of, tag_of = trace.nbytes_of, trace.tag_of
    take = pool.allocate
    # A pool takes no tag that could not be shown, but a file may have any.
    tags = [None if tag is None else printable(tag) for tag in trace.tags]

    def tagged(allocation_id: int) -> Memory:
        tag = None if tag_of is None else tags[tag_of[allocation_id]]
        return take(nbytes_of[allocation_id], tag=tag)

    def touched(allocation_id: int) -> Memory:
        memory = tagged(allocation_id)
        memory.fill(TOUCH_BYTE)
        return memory

    if touch:
        return touched
    if tag_of is not None:
        return tagged
    return lambda allocation_id: take(nbytes_of[allocation_id])


def _empty_loop_ns(trace: Trace) -> int:
    nbytes_of = trace.nbytes_of

    def nothing(allocation_id: int) -> None:
        nbytes_of[allocation_id]

    return _timed(trace.operations, [None] * trace.allocations, nothing)


@contextlib.contextmanager
def placing(trace: Trace, pool: Pool) -> Iterator[None]:
    """Let an out-of-memory error say at which event of a trace it came.

    All that the pool allocates in the block is the trace's, in its order.
    """
    before = pool.stats().allocation_count
    try:
        yield
    except OutOfMemoryError as error:
        # Ids count up from 0, so the one that failed is how many were placed.
        failed = pool.stats().allocation_count - before
        event = trace.operations.index(failed) + 1
        most = format_nbytes(trace.peak_live_nbytes)
        error.add_note(f"It is event {event} of {len(trace)}.")
        error.add_note(f"The trace has up to {most} live at once.")
        raise


@contextlib.contextmanager
def addressable(trace: Trace) -> Iterator[None]:
    """Refuse a trace in whose replay a size is too large for any pool.

    With 32 bits that happens to a trace that 64 have made.
    """
    try:
        yield
    except OverflowError as error:
        reason = f"{error}. Try: a machine with wider addresses"
        raise FileFormatError(trace.name, 0, reason) from None
