"""Long seeded use of a pool over real memory."""

import ctypes
import random
from collections.abc import Iterator

from madl import Memory, Pool
from madl.backends.cpu import CpuBackend
from tests.backends.host import KIB, MIB, linux_memory, read, write

MOST_LIVE_NBYTES = 48 * MIB
PIECE_NBYTES = 64 * KIB  # Python takes more from the system, which tests use up


def open_pool(page_nbytes: int, *, is_lazy: bool = True, recycle: bool = True) -> Pool:
    backend = CpuBackend(_memory=linux_memory(is_lazy_allowed=is_lazy))
    return Pool(backend, page_size=page_nbytes, recycle=recycle)


class Walk:
    """A seeded mix of allocations and frees of which every byte is written."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.random = random.Random(seed)
        self.live: list[tuple[Memory, bytes]] = []
        self.live_nbytes = 0
        self.count = 0

    def step(self) -> None:
        """Allocate, or verify and free."""
        is_full = self.live_nbytes > MOST_LIVE_NBYTES
        if self.live and (is_full or self.random.random() < 0.45):
            self.free(self.random.randrange(len(self.live)))
        else:
            self.allocate(int(2 ** self.random.uniform(12, 22)))

    def allocate(self, nbytes: int) -> None:
        """Take a block and fill it with a pattern that no other block has."""
        memory = self.pool.allocate(nbytes)
        self.count += 1
        pattern = self.count.to_bytes(8, "little")
        piece = pattern * (PIECE_NBYTES // 8)
        for offset in range(0, nbytes, PIECE_NBYTES):
            length = min(PIECE_NBYTES, nbytes - offset)
            ctypes.memmove(memory.address + offset, piece, length)
        self.live.append((memory, pattern))
        self.live_nbytes += nbytes

    def free(self, index: int) -> None:
        """Give a block back, its pattern intact."""
        memory, pattern = self.live.pop(index)
        self.verify(memory, pattern)
        self.live_nbytes -= memory.nbytes
        memory.free()

    def verify(self, memory: Memory, pattern: bytes) -> None:
        """Fail if a single byte of a block has changed."""
        piece = pattern * (PIECE_NBYTES // 8)
        for offset in range(0, memory.nbytes, PIECE_NBYTES):
            length = min(PIECE_NBYTES, memory.nbytes - offset)
            assert read(memory.address + offset, length) == piece[:length]

    def finish(self) -> None:
        """Verify and free every block; the pool is sound."""
        self.pool.check()
        while self.live:
            self.free(-1)
        self.pool.check()


def steps(walk: Walk, count: int) -> Iterator[int]:
    """Take steps, and yield after every 50th."""
    for step in range(1, count + 1):
        walk.step()
        if step % 50 == 0:
            yield step


class QuietWalk(Walk):
    """A walk whose only page faults are those of its blocks."""

    def allocate(self, nbytes: int) -> None:
        """Take a block and write all of it."""
        memory = self.pool.allocate(nbytes)
        write(memory.address, 1, nbytes)
        self.live.append((memory, b""))
        self.live_nbytes += nbytes

    def verify(self, memory: Memory, pattern: bytes) -> None:
        """Read nothing: what is read becomes an object, which faults too."""
