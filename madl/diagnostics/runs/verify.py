"""Verify a pool by a trace: a pattern in each block, compared before its free."""

from collections.abc import Callable
from dataclasses import dataclass

from madl.diagnostics.replay import addressable
from madl.diagnostics.traces.trace import Trace
from madl.errors import CorruptedPoolError
from madl.hotpath import Memory
from madl.pool import Pool

_REPORTED_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Verified:
    """What was written to blocks, and found there when they were freed."""

    blocks: int
    nbytes: int


def verify(
    trace: Trace,
    pool: Pool,
    *,
    on_progress: Callable[[int], object] = lambda events: None,
) -> Verified:
    """Replay a trace; write to every block, and compare it before its free.

    ``on_progress`` is called now and then with the events done since the last call.

    Raises:
        CorruptedPoolError: A block does not hold what was written to it.
        MissingCapabilityError: The device has no content that could be read.
        OutOfMemoryError: The trace needs more than the pool may commit.
        FileFormatError: It asks for more than this machine can address.
    """
    held: dict[int, Memory] = {}
    nbytes = 0
    for done, operation in enumerate(trace.operations, 1):
        if operation >= 0:
            with addressable(trace):
                memory = pool.allocate(trace.nbytes_of[operation])
            held[operation] = memory
            memory.copy_from(_content(operation, memory.nbytes))
            nbytes += memory.nbytes
        else:
            _compare(~operation, held.pop(~operation))
        if done % _REPORTED_EVERY == 0:
            on_progress(_REPORTED_EVERY)
    for allocation_id, memory in held.items():
        _compare(allocation_id, memory)
    on_progress(len(trace) % _REPORTED_EVERY)
    return Verified(trace.allocations, nbytes)


def _compare(allocation_id: int, memory: Memory) -> None:
    found, expected = memory.tobytes(), _content(allocation_id, memory.nbytes)
    if found != expected:
        at = next(
            n for n, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b
        )
        raise CorruptedPoolError(
            f"byte {at} of allocation {allocation_id}, {memory.nbytes} bytes on "
            f"{memory.device}",
            found[at],
            expected[at],
        )


def _content(allocation_id: int, nbytes: int) -> bytes:
    """Return bytes that no other allocation has, but for the shortest."""
    word = (allocation_id * 2654435761 + 0x9E3779B97F4A7C15) & (1 << 64) - 1
    return (word.to_bytes(8, "big") * (nbytes // 8 + 1))[:nbytes]
