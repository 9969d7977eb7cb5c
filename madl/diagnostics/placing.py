"""Running out of memory in the middle of a trace."""

import contextlib
from collections.abc import Iterator

from madl.diagnostics.traces.trace import Trace
from madl.errors import OutOfMemoryError
from madl.pool import Pool
from madl.sizes import format_nbytes


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
