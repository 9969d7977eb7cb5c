"""Programs of several streams: whoever reads a block finds what was written to it."""

import random

import pytest

from madl import Memory, OutOfMemoryError, Pool
from madl.backends.protocol import Capability
from madl.testing import FakeBackend

STEPS = 1500
LIMIT = 512 * 1024

ORDERED = Capability.COPY | Capability.FILL | Capability.STREAM_ORDERED
SEGMENTS = ORDERED
PAGES = ORDERED | Capability.COMMIT
MOVED_PAGES = PAGES | Capability.REMAP


class Program:
    """Draws steps; each block has one value, which every read of it has to find."""

    def __init__(self, seed: int, capabilities: Capability) -> None:
        self.draw = random.Random(seed)
        self.backend = FakeBackend(capabilities=capabilities)
        self.pool = Pool(self.backend, limit=LIMIT)
        self.streams = [self.backend.make_stream() for _ in range(3)]
        self.live: list[tuple[Memory, int]] = []
        self.reads: list[tuple[bytearray, int]] = []

    def step(self) -> None:
        action = self.draw.choices(
            (self.allocate, self.free, self.read, self.pump, self.trim, self.forget),
            (30, 26, 20, 20, 2, 2),
        )[0]
        action()

    def allocate(self) -> None:
        """Take a block and queue that it is written."""
        stream = self.draw.choice(self.streams)
        nbytes = self.draw.choice((64, 700, 5000, 30_000, 90_000))
        try:
            memory = self.pool.allocate(nbytes, stream=stream)
        except OutOfMemoryError:
            self.free()
            return
        value = self.draw.randrange(256)
        memory.copy_from(bytes([value]) * nbytes, stream=stream)
        self.live.append((memory, value))

    def free(self) -> None:
        if self.live:
            self.live.pop(self.draw.randrange(len(self.live)))[0].free()

    def read(self) -> None:
        """Queue a read, in the owner's stream or in another one behind it."""
        if not self.live:
            return
        memory, value = self.draw.choice(self.live)
        reader = self.draw.choice(self.streams)
        self.backend.wait(reader, self.backend.record(memory.stream))
        found = bytearray(memory.nbytes)
        memory.copy_to(found, stream=reader)
        self.reads.append((found, value))

    def pump(self) -> None:
        self.draw.choice(self.streams).pump(self.draw.randrange(1, 8))

    def trim(self) -> None:
        self.pool.trim()
        self.pool.check()

    def forget(self) -> None:
        """End a stream: all that it has to do is done, then it is gone."""
        gone = self.draw.choice(self.streams)
        self.live = [(m, value) for m, value in self.live if m.stream is not gone]
        self.pool.forget_stream(gone)
        self.streams.remove(gone)
        self.streams.append(self.backend.make_stream())

    def finish(self) -> None:
        self.backend.finish()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "capabilities", [SEGMENTS, PAGES, MOVED_PAGES], ids=["segments", "pages", "moved"]
)
def test_a_walk_reads_what_was_written(seed: int, capabilities: Capability) -> None:
    program = Program(seed, capabilities)
    for _ in range(STEPS):
        program.step()

    program.finish()
    program.pool.check()

    wrong = [value for found, value in program.reads if found.strip(bytes([value]))]
    assert len(program.reads) > 100
    assert not wrong
    del program.live
    program.pool.close()
    assert not program.backend.reservations
