"""The history of a trace: replayed on ``sim``, with the address of each block noted."""

from array import array
from collections.abc import Callable

import numpy as np

from madl.backends.protocol import Reservation
from madl.backends.sim import SimBackend
from madl.diagnostics.history import BlockTable, History, Moment
from madl.diagnostics.replay import addressable, placing
from madl.diagnostics.runs.map import RangeLog
from madl.diagnostics.traces.trace import Trace
from madl.hotpath import Memory
from madl.pool import Pool

_REPORTED_EVERY = 4096
_ADDRESS_BITS = 47
"""No reservation of ``sim`` is larger than so many bits can tell."""


class LoggedSim(SimBackend):
    """``sim`` with addresses, which notes what is committed and when."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 0
        self.log = RangeLog()

    def reserve(self, nbytes: int) -> Reservation:
        """Reserve as ``sim`` does, at an address that nothing else has."""
        taken = super().reserve(nbytes)
        return taken._replace(address=self._next_native << _ADDRESS_BITS)

    def release(self, reservation: Reservation) -> None:
        """Note that nothing is committed there any more."""
        super().release(reservation)
        self.log.remove(_address(reservation), reservation.nbytes, self.moment)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Note a range that is taken."""
        super().commit(reservation, offset, nbytes)
        self.log.add(_address(reservation) + offset, nbytes, self.moment)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Note a range that is given back."""
        super().decommit(reservation, offset, nbytes)
        self.log.remove(_address(reservation) + offset, nbytes, self.moment)

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Note where a range is moved from and to."""
        super().remap(reservation, source, destination, nbytes, into=into)
        target = reservation if into is None else into
        self.log.remove(_address(reservation) + source, nbytes, self.moment)
        self.log.add(_address(target) + destination, nbytes, self.moment)


def history_of_trace(
    trace: Trace,
    *,
    limit: int | str | None = None,
    on_progress: Callable[[int], object] = lambda events: None,
) -> History:
    """Replay a trace through a pool on ``sim`` and note where each block lies.

    Streams are ignored: the pool has one. ``on_progress`` is called now and then with
    the events done since the last call.

    Raises:
        OutOfMemoryError: The trace needs more than the limit, or than ``sim`` has.
        FileFormatError: It asks for more than this machine can address.
    """
    sim = LoggedSim()
    # pooling=True: MADL_POOL=off is meant for programs, not for their replay
    with Pool(sim, limit=limit, pooling=True) as pool:
        with addressable(trace), placing(trace, pool):
            columns = _replay(trace, pool, sim, on_progress)
        limit_nbytes = pool.limit_nbytes
        committed = sim.log.table(len(trace))
    place_of, places = _places(trace)
    holder_of = place_of if trace.tag_of is None else trace.tag_of
    columns = (*columns, holder_of, place_of)
    return History(
        name=trace.name,
        device="sim",
        placed_by="madl's pool, replayed on sim",
        last_moment=len(trace),
        blocks=BlockTable(*(np.asarray(column, np.int64) for column in columns)),
        committed=committed,
        holders=places if trace.tag_of is None else trace.tags,
        places=places,
        limit_nbytes=limit_nbytes,
        markers=tuple(Moment(*marker) for marker in trace.markers),
        notes=trace.notes,
    )


def _places(trace: Trace) -> tuple["array[int]", tuple[str | None, ...]]:
    """Return where each block was asked for: the innermost frame of its stack."""
    stack_of = trace.stack_of
    if stack_of is None:
        return array("q", bytes(8 * trace.allocations)), (None,)
    return stack_of, tuple(str(stack[0]) if stack else None for stack in trace.stacks)


def _replay(
    trace: Trace, pool: Pool, sim: LoggedSim, on_progress: Callable[[int], object]
) -> tuple["array[int]", ...]:
    """Return the first columns of the block table."""
    held: list[Memory | None] = [None] * trace.allocations
    address, capacity = array("q"), array("q")
    start, stop = array("q"), array("q", [len(trace) + 1]) * trace.allocations
    allocate, nbytes_of = pool.allocate, trace.nbytes_of
    try:
        for moment, operation in enumerate(trace.operations, 1):
            sim.moment = moment
            if operation >= 0:
                held[operation] = memory = allocate(nbytes_of[operation])
                address.append(memory.address)
                capacity.append(memory.capacity)
                start.append(moment)
                del memory  # it would pin the block until the next allocation is made
            else:
                held[~operation] = None
                stop[~operation] = moment
            if moment % _REPORTED_EVERY == 0:
                on_progress(_REPORTED_EVERY)
    finally:
        held.clear()  # an error's traceback pins this frame
    on_progress(len(trace) % _REPORTED_EVERY)
    return address, nbytes_of, capacity, start, stop


def _address(reservation: Reservation) -> int:
    assert reservation.address is not None, "as given by reserve"
    return reservation.address
