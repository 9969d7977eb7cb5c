"""What do pinned blocks gain in copies between a GPU and pageable host memory?

Direct is the driver's own copy of the same bytes, pinned memory of the host is the
bound. ``python -m benchmarks.gpu`` runs it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import madl
from benchmarks.answer import Row, Table
from benchmarks.timing import in_turns, ratio, spread
from madl import Memory, Pool
from madl.memory import staging
from madl.sizes import format_nbytes

MIB = 1 << 20
SIZES = (4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
PIECES = (MIB, 4 * MIB, 16 * MIB)
DIRECT, PINNED = "the driver's own copy", "pinned host memory"


class Way(NamedTuple):
    """One way to copy: the host side, and in which pieces; None for no pieces."""

    host: Any
    piece_nbytes: int | None


def copies(rounds: int) -> list[Table]:
    """Measure copies to the device and from it, in GB/s."""
    pool, pinned = Pool("cuda:0"), Pool("cuda_pinned:0")
    most = max(SIZES)
    memory, locked = pool.allocate(most), pinned.allocate(most)
    memory.fill(1)
    pageable = np.ones(most, np.uint8)
    locked.as_array("uint8")[:] = 1
    ways = {DIRECT: Way(pageable, None)}
    for piece in PIECES:
        ways[f"two blocks of {format_nbytes(piece)}"] = Way(pageable, piece)
    ways[PINNED] = Way(locked, None)
    tables = [
        *_tables("to the device", ways, memory, rounds, is_back=False),
        *_tables("from the device", ways, memory, rounds, is_back=True),
    ]
    madl.trim()
    return tables


def _tables(
    title: str, ways: dict[str, Way], memory: Memory, rounds: int, *, is_back: bool
) -> Iterator[Table]:
    results = {}
    for nbytes in SIZES:
        measures: dict[str, Callable[[], float]] = {
            name: lambda way=way, part=memory[:nbytes]: _rate(way, part, is_back)  # type: ignore[misc]
            for name, way in ways.items()
        }
        results[nbytes] = in_turns(measures, rounds=rounds)
    columns = ("", *(format_nbytes(nbytes) for nbytes in SIZES))
    rates: list[Row] = [
        (name, *(spread(results[nbytes][name]) for nbytes in SIZES)) for name in ways
    ]
    yield Table(f"GB/s {title}, median (least-most)", columns, tuple(rates))
    gains: list[Row] = [
        (name, *(ratio(of[name], of[DIRECT]) for of in results.values()))
        for name in ways
    ]
    yield Table(f"{title}, as a multiple of {DIRECT}", columns, tuple(gains))


def _rate(way: Way, memory: Memory, is_back: bool) -> float:
    host = way.host[: memory.nbytes]
    sides = (host, memory) if is_back else (memory, host)
    with _in_pieces(way.piece_nbytes):
        started = time.perf_counter_ns()
        madl.copy(*sides)
        return memory.nbytes / (time.perf_counter_ns() - started)


@contextlib.contextmanager
def _in_pieces(nbytes: int | None) -> Iterator[None]:
    """Let every copy go through blocks of so many bytes, or none."""
    before = staging.SMALLEST_NBYTES, staging.PIECE_NBYTES
    staging.SMALLEST_NBYTES = 1 << 62 if nbytes is None else 0
    staging.PIECE_NBYTES = nbytes or before[1]
    try:
        yield
    finally:
        staging.SMALLEST_NBYTES, staging.PIECE_NBYTES = before
