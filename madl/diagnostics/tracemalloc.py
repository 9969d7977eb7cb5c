"""Report allocations of pools to Python's ``tracemalloc``, in a domain of their own."""

import contextlib
import ctypes
import itertools
import tracemalloc
from collections.abc import Iterator

from madl.pool.tracking import Wish, wanted
from madl.stacks import Stack

DOMAIN = 0x6D61646C
"""Of what ``tracemalloc`` is told: 1835099244, the letters ``madl``."""


class Tracer:
    """A listener that tells ``tracemalloc`` of each block.

    Blocks of devices may have no address, and those of two devices the same, so each
    is known by a number of its own.
    """

    def __init__(self) -> None:
        # With the interpreter's lock held, as the functions demand.
        signature = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_size_t
        )
        self._track = signature(("PyTraceMalloc_Track", ctypes.pythonapi))
        self._untrack = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_size_t)(
            ("PyTraceMalloc_Untrack", ctypes.pythonapi)
        )
        self._numbers = itertools.count(1)

    def allocated(
        self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
    ) -> int:
        """As ``Listener``."""
        del tag, stream_number, stack  # tracemalloc knows domains and its own lines
        number = next(self._numbers)
        if tracemalloc.is_tracing():  # asking is far cheaper than being refused
            self._track(DOMAIN, number, nbytes)
        return number

    def freed(self, allocation_id: int) -> None:
        """As ``Listener``."""
        if tracemalloc.is_tracing():
            self._untrack(DOMAIN, allocation_id)


@contextlib.contextmanager
def show_in_tracemalloc() -> Iterator[None]:
    """Tell ``tracemalloc`` of all that is allocated inside the block, in all pools.

    A block counts until it is freed, after the end of this one too. Snapshots name the
    line of each; ``tracemalloc.DomainFilter(True, DOMAIN)`` leaves Python's memory
    out. NumPy tells of its own arrays already, but of none that lie in a pool.

    Start ``tracemalloc`` first: what is allocated while it does not trace is not seen.
    And with ``start(10)``: up to seven lines are madl's own. Allocations cost more
    while this is in force.
    """
    with wanted(Wish(listener=_tracer)):
        yield


_tracer = Tracer()
