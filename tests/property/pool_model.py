"""A pool next to the simplest account of what it should hold."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from madl import Memory, Pool
from madl.backends.sim import SimBackend
from madl.errors import OutOfMemoryError
from madl.pool.options import Fit
from tests.fakes import FakeBackend

MIB = 1 << 20
TOTAL_NBYTES = 6 * MIB
TAGS = (None, None, "weights", "activations")
SMALL = (0, 1, 511, 512, 513, 4096, 5000, 16384, 40_000)
LARGE = (100_000, 300_000, MIB, MIB + 1, 2 * MIB)


@dataclass(frozen=True)
class Setting:
    """A device and the options of the pool over it."""

    commits: bool = True
    remaps: bool = True
    is_sim: bool = False
    limit: int | None = None
    fit: Fit = "first"
    recycle: bool = True
    pooling: bool = True

    def make_backend(self) -> FakeBackend | SimBackend:
        """Return a new device."""
        if self.is_sim:
            return SimBackend(total_nbytes=TOTAL_NBYTES, commits=self.commits)
        return FakeBackend(
            total_nbytes=TOTAL_NBYTES, commits=self.commits, remaps=self.remaps
        )


SETTINGS = {
    "remap": Setting(),
    "limit": Setting(limit=3 * MIB),
    "small limit": Setting(limit=300_000),
    "no remap": Setting(remaps=False, limit=3 * MIB),
    "no recycling": Setting(recycle=False, limit=3 * MIB),
    "best fit": Setting(fit="best", limit=3 * MIB),
    "segments": Setting(commits=False),
    "segments, limit": Setting(commits=False, limit=5 * MIB),
    "no pooling": Setting(pooling=False, limit=3 * MIB),
    "sim": Setting(is_sim=True, limit=3 * MIB),
    "sim segments": Setting(is_sim=True, commits=False),
}


class PoolModel:
    """A pool and what it must account for: every handle that is live."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.backend = setting.make_backend()
        self.pool = Pool(
            self.backend,
            limit=setting.limit,
            fit=setting.fit,
            recycle=setting.recycle,
            pooling=setting.pooling,
        )
        self.live: list[Memory] = []
        self.allocation_count = 0
        self.high_water = 0
        self.is_trimming = False  # still so after a trim that failed halfway

    def allocate(
        self, nbytes: int, *, tag: str | None = None, alignment: int | None = None
    ) -> None:
        """Allocate; running out of memory must be for a reason."""
        try:
            memory = self.pool.allocate(nbytes, tag=tag, alignment=alignment)
        except OutOfMemoryError as error:
            self._check_reason(error, nbytes, alignment)
            return
        self.live.append(memory)
        self.allocation_count += 1
        self.high_water = max(self.high_water, self.live_nbytes)
        assert (memory.nbytes, memory.tag) == (nbytes, tag)
        assert nbytes <= memory.capacity
        if nbytes and not self.setting.is_sim:
            assert memory.address % max(alignment or 0, 512) == 0

    def free(self, choice: int) -> None:
        """Free one of the live handles, if there is any."""
        if self.live:
            self.live.pop(choice % len(self.live)).free()

    def drop(self, choice: int) -> None:
        """Forget one of the live handles without a free."""
        if self.live:
            del self.live[choice % len(self.live)]

    def trim(self, keep: int) -> None:
        """Trim; as much goes back as is said."""
        before = self.backend.committed_nbytes

        self.is_trimming = True
        gave_back = self.pool.trim(keep)
        self.is_trimming = False

        assert gave_back == before - self.backend.committed_nbytes >= 0

    def close(self) -> None:
        """Close, with blocks live, and free these; nothing is left on the device."""
        closed = self.pool.close()
        assert closed.live_nbytes == self.live_nbytes
        while self.live:
            self.live.pop().free()
        assert self.backend.committed_nbytes == 0
        if isinstance(self.backend, FakeBackend):
            assert self.backend.reservations == {}

    @property
    def live_nbytes(self) -> int:
        """Bytes asked for and not freed yet."""
        return sum(memory.nbytes for memory in self.live)

    def check(self) -> None:
        """Compare all that the pool says with the handles and with the device."""
        self.pool.check()
        self._check_figures()
        self._check_blocks()
        if isinstance(self.backend, FakeBackend):
            self._check_addresses(self.backend)

    def _check_figures(self) -> None:
        stats = self.pool.stats()
        committed = self.backend.committed_nbytes
        capacity = sum(memory.capacity for memory in self.live)
        by_tag: defaultdict[str | None, int] = defaultdict(int)
        for memory in self.live:
            by_tag[memory.tag] += memory.nbytes

        assert stats.live_nbytes == self.live_nbytes
        assert stats.padding_nbytes == capacity - self.live_nbytes
        assert stats.live_high_water_nbytes == self.high_water
        assert stats.allocation_count == self.allocation_count
        assert stats.committed_nbytes == committed
        assert stats.committed_high_water_nbytes >= committed
        assert committed <= (self.setting.limit or TOTAL_NBYTES)
        assert capacity + stats.cached_nbytes <= committed <= stats.reserved_nbytes
        assert stats.largest_free_nbytes <= committed - capacity
        assert {tag: usage.live_nbytes for tag, usage in stats.tags.items()} == {
            tag: by_tag[tag] for tag in stats.tags
        }

    def _check_blocks(self) -> None:
        snapshot = self.pool.snapshot()
        live = Counter(
            (block.nbytes, block.capacity_nbytes, block.tag)
            for arena in snapshot.arenas
            for block in arena.blocks
            if block.state == "live"
        )

        assert live == Counter(
            (memory.nbytes, memory.capacity, memory.tag)
            for memory in self.live
            if memory.nbytes
        )

    def _check_addresses(self, backend: FakeBackend) -> None:
        stop = 0
        for memory in sorted(self.live, key=lambda memory: memory.address):
            if memory.nbytes:
                assert memory.address >= stop, "two live blocks overlap"
                stop = memory.address + memory.capacity
                assert backend.is_committed_at(memory.address, memory.capacity)

    def _check_reason(
        self, error: OutOfMemoryError, nbytes: int, alignment: int | None
    ) -> None:
        """Running out is wrong when a free, committed piece is large enough."""
        needed = -(-nbytes // 512) * 512 + (alignment or 0)
        assert error.requested == nbytes
        if self.setting.pooling and needed <= (self.setting.limit or TOTAL_NBYTES):
            assert needed > self.pool.stats().largest_free_nbytes


def random_step(model: PoolModel, draw: random.Random) -> None:
    """Take a step of a walk, most of them allocations and frees of a few sizes."""
    sizes: tuple[int, ...] = SMALL if draw.random() < 0.8 else LARGE
    options: dict[str, Any] = {"tag": draw.choice(TAGS)}
    if draw.random() < 0.1:
        options["alignment"] = 1 << draw.randrange(21)
    match draw.randrange(20):
        case 0:
            model.trim(draw.choice((0, MIB)))
        case 1:
            model.drop(draw.randrange(1 << 16))
        case 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10:
            model.allocate(draw.choice(sizes), **options)
        case _:
            model.free(draw.randrange(1 << 16))
