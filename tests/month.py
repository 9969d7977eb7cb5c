"""A month in the life of one pool, in which sizes drift: its own books do not grow.

Run by ``nox -s month [-- OPERATIONS]``. Each day a quarter of the sizes are others, a
fifth of the blocks have some other length still, and more memory is live or less; at
midnight the pool is trimmed. The same calls go to plain first fit over a sorted list,
one range without bins or pages: the linear reference.
"""

import dataclasses
import mmap
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from madl import Memory, Pool
from madl.hotpath import BLOCK_GRANULARITY, bins_of
from madl.pool.allocate import parts_of
from madl.sizes import align_up
from tests.linear import LinearFirstFit

OPERATIONS = 10_000_000
DAYS = 30
MOST_BINS = 1 << 16
"""As many sizes are remembered."""
MOST_GROWN_NBYTES = 32 << 20
_ADDRESSES = 1 << 46
_STATM = Path("/proc/self/statm")
_MIB, _GIB = 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True)
class Day:
    """Figures at the end of a day, in bytes where the name says no other unit."""

    number: int
    peak_live_nbytes: int
    """The most of this day."""
    committed_nbytes: int
    """What the pool took for it, and not more than it took."""
    reference_nbytes: int
    """How far the reference reached for it."""
    fragmentation_ratio: float
    reference_fragmentation_ratio: float
    live_count: int
    binned_count: int
    binned_nbytes: int
    free_count: int
    """Nodes of the pool's indexes."""
    bin_count: int
    resident_nbytes: int
    """Of the process; 0 where the system does not say."""


class Reference:
    """First fit over a sorted list: no bins, no pages, one range without an end."""

    def __init__(self) -> None:
        self._free = LinearFirstFit()
        self._free.put(0, _ADDRESSES)
        self.reached_nbytes = 0

    def allocate(self, capacity: int) -> tuple[int, int]:
        """Place a block."""
        offset = self._free.find(capacity)
        self._free.carve_found(capacity)
        if offset + capacity > self.reached_nbytes:
            self.reached_nbytes = offset + capacity
        return offset, capacity

    def free(self, block: tuple[int, int]) -> None:
        """Give it back."""
        self._free.put(*block)

    def fragmentation_ratio(self) -> float:
        """Return how broken up is what is free below the last live block."""
        nbytes = [nbytes for _, nbytes in self._free.blocks()[:-1]]
        return 1 - max(nbytes) / sum(nbytes) if nbytes else 0.0

    def wake_up(self) -> None:
        """Measure from now on how far it reaches."""
        self.reached_nbytes = self._free.blocks()[-1][0]


class Month:
    """The calls, the pool and the reference that they go to."""

    def __init__(self, operations: int, seed: int = 1) -> None:
        self.pool = Pool("sim")
        self.reference = Reference()
        self.live: list[tuple[Memory, tuple[int, int]]] = []
        self.live_nbytes = self.peak_live_nbytes = 0
        self.sizes = [self._new_size(random.Random(seed)) for _ in range(40)]
        self._draw = random.Random(seed)
        self._a_day = operations // DAYS

    def days(self) -> Iterator[Day]:
        """Live through one day after the other."""
        for number in range(1, DAYS + 1):
            for _ in range(10):
                index = self._draw.randrange(len(self.sizes))
                self.sizes[index] = self._new_size(self._draw)
            self._live_on(self._draw.randint(1, 8) * _GIB)
            self.pool.check()
            yield self._look(number)
            self.pool.trim()
            self.reference.wake_up()
            self.peak_live_nbytes = self.live_nbytes

    def _live_on(self, wanted_nbytes: int) -> None:
        """Allocate up to so many bytes, and free about as many, again and again."""
        draw = self._draw.random
        for _ in range(self._a_day):
            # Half below what is wanted, a third above: it comes and goes in waves.
            is_low = self.live_nbytes < wanted_nbytes
            if not self.live or draw() < (0.56 if is_low else 0.34):
                self._allocate(draw)
            else:
                # What is young dies young.
                count = len(self.live)
                lot = draw()
                self._free(int(count * (draw() if lot < 0.3 else 1 - (1 - draw()) / 8)))

    def _allocate(self, draw: Callable[[], float]) -> None:
        nbytes = self.sizes[int(draw() * len(self.sizes))]
        if draw() < 0.2:  # of some other length, as sequences have it
            nbytes = int(nbytes * (0.5 + draw()))
        memory = self.pool.allocate(nbytes)
        block = self.reference.allocate(align_up(nbytes, BLOCK_GRANULARITY))
        self.live.append((memory, block))
        self.live_nbytes += nbytes
        self.peak_live_nbytes = max(self.peak_live_nbytes, self.live_nbytes)

    def _free(self, index: int) -> None:
        memory, block = self.live[index]
        self.live[index] = self.live[-1]
        self.live.pop()
        self.live_nbytes -= memory.nbytes
        memory.free()
        self.reference.free(block)

    @staticmethod
    def _new_size(draw: random.Random) -> int:
        return int(2 ** draw.uniform(12, 26))

    def _look(self, number: int) -> Day:
        stats = self.pool.stats()
        free = [len(arena.blocks.index) for arena in parts_of(self.pool).growth.arenas]
        snapshot = self.pool.snapshot()
        states = [block.state for arena in snapshot.arenas for block in arena.blocks]
        assert stats.live_nbytes == self.live_nbytes
        return Day(
            number=number,
            peak_live_nbytes=self.peak_live_nbytes,
            committed_nbytes=stats.committed_nbytes,
            reference_nbytes=self.reference.reached_nbytes,
            fragmentation_ratio=stats.fragmentation_ratio,
            reference_fragmentation_ratio=self.reference.fragmentation_ratio(),
            live_count=len(self.live),
            binned_count=sum(state == "binned" for state in states),
            binned_nbytes=stats.cached_nbytes,
            free_count=sum(free),
            bin_count=bins_of(self.pool).bin_count,
            resident_nbytes=_resident_nbytes(),
        )


def _resident_nbytes() -> int:
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE


HEADER = (
    "day  live blocks  peak GiB  committed/live  reference  fragmentation  reference  "
    "free blocks   bins  resident MiB"
)


def line(day: Day) -> str:
    """Return a day as a line of the table."""
    peak = day.peak_live_nbytes
    return (
        f"{day.number:3} {day.live_count:12,} {peak / _GIB:9.2f} "
        f"{day.committed_nbytes / peak:15.3f} {day.reference_nbytes / peak:10.3f} "
        f"{day.fragmentation_ratio:14.3f} {day.reference_fragmentation_ratio:10.3f} "
        f"{day.free_count:12,} {day.bin_count:6,} {day.resident_nbytes / _MIB:13.1f}"
    )


def check_bounds(days: list[Day]) -> None:
    """Fail where something has grown that need not, with the days' own figures."""
    for day in days:
        # A free block lies between two that are not, or at an end of its arena.
        bound = day.live_count + day.binned_count + 2
        assert day.free_count <= bound, (day.free_count, bound)
        assert day.bin_count <= MOST_BINS, day.bin_count
        assert day.binned_nbytes <= day.committed_nbytes // 16, day.binned_nbytes
    committed = sum(day.committed_nbytes for day in days)
    reference = sum(day.reference_nbytes for day in days)
    assert committed <= 1.1 * reference, (committed, reference)


def main(arguments: list[str]) -> None:
    """Live through a month, print it, and fail where something has grown."""
    operations = int(arguments[0]) if arguments else OPERATIONS
    month = Month(operations)
    days = []
    print(HEADER)
    for day in month.days():
        days.append(day)
        print(line(day), flush=True)
    stats = month.pool.stats()
    print(f"{stats.allocation_count:,} allocations, {stats.free_count:,} frees")
    check_bounds(days)
    # By the third day all sizes were seen that come back.
    grown = days[-1].resident_nbytes - days[2].resident_nbytes
    print(f"resident memory grew by {grown / _MIB:.1f} MiB since the third day")
    assert grown < MOST_GROWN_NBYTES, grown


if __name__ == "__main__":
    main(sys.argv[1:])
