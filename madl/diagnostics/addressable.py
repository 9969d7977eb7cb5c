"""Traces that ask for more than this machine can address."""

import contextlib
from collections.abc import Iterator

from madl.diagnostics.traces.trace import Trace
from madl.errors import FileFormatError


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
