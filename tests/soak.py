"""Everything at once, for as long as told; prints what was done and what it took.

A script, since what it measures is its process: ``python tests/soak.py 600``. Threads
use the same pools in every way there is, with forced switches, a collector that comes
at random, and signals. From time to time all of them pause and drop what they hold:
the pools have to be empty then, and the process may take no more in the second half
than it took in the first.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import madl
from madl import Memory, Pool, Spillable
from madl.backends.sim import SimBackend
from madl.hotpath import IS_COMPILED
from madl.pool.allocate import parts_of

KIB = 1 << 10
SPILLED_NBYTES = 128 * KIB
PAUSES = 20
SLACK_NBYTES = 8 * 1024 * KIB
"""What the C library keeps of threads differs by so much from pause to pause."""
COLD_SLACK_NBYTES = 4 * SLACK_NBYTES
"""So much as long as tables still grow to the size that bounds them."""
WARM_S = 60


class Handed(NamedTuple):
    """What one thread allocates and another frees."""

    memory: Memory
    byte: int

    def check(self) -> None:
        """Verify that nobody else has written to it."""
        content = self.memory.tobytes()
        assert content == bytes([self.byte]) * len(content), "content was overwritten"


class World:
    """What all threads share."""

    def __init__(self, thread_count: int, folder: Path) -> None:
        self.device = SimBackend()
        self.pool = Pool("cpu", page_size="64 KiB")
        self.limited = Pool("cpu", limit="8 MiB", page_size="64 KiB")
        self.simulated = Pool(self.device)
        # Room for what all threads and the main one use at once, no more: nobody may
        # be refused.
        self.spilling = Pool("cpu", limit=SPILLED_NBYTES * (thread_count + 1))
        self.spillables: list[Spillable] = []
        self.spillable_count = 3 * thread_count
        self.handed: deque[Handed] = deque()
        self.interrupted: deque[Memory] = deque()
        self.folder = folder
        self.recording = threading.Lock()
        self.pools = (self.pool, self.limited, self.simulated, self.spilling)

    def fill(self) -> None:
        """Make what is spilled and restored."""
        for byte in range(self.spillable_count):
            memory = self.spilling.allocate(SPILLED_NBYTES)
            memory.fill(byte)
            self.spillables.append(Spillable(memory, to=("host", "file")[byte % 2]))

    def empty(self) -> None:
        """Drop all; every pool has to notice."""
        for one in self.spillables:
            one.close()
        self.spillables.clear()
        self.handed.clear()
        self.interrupted.clear()
        madl.limit_device(self.device, None)
        gc.collect()
        gc.collect()
        self._wait_for_other_threads()
        for pool in self.pools:
            pool.check()
            assert pool.stats().live_nbytes == 0, pool
            pool.trim()
            assert pool.stats().committed_nbytes == 0, pool

    def _wait_for_other_threads(self) -> None:
        """Without an interpreter lock, the thread that made a handle ends it, later."""
        end = time.monotonic() + 10
        while (
            any(parts_of(pool).shared.live_nbytes for pool in self.pools)
            and time.monotonic() < end
        ):
            time.sleep(0.01)
            gc.collect()


Work = Callable[[World, random.Random], object]


def hand(world: World, pool: Pool, chance: random.Random) -> None:
    """Allocate for another thread."""
    nbytes = chance.choice([100, 1000, 5000, chance.randrange(1, 300_000)])
    byte = chance.randrange(256)
    memory = pool.allocate(nbytes, tag=chance.choice([None, None, "a", "b"]))
    memory.fill(byte)
    if chance.random() < 0.05:
        memory.resize(nbytes + 1000)
        memory.fill(byte)
    world.handed.append(Handed(memory, byte))


def trade(world: World, chance: random.Random) -> None:
    """Allocate, and free what is likely another thread's."""
    for _ in range(20):
        hand(world, world.pool, chance)
        if len(world.handed) < 60:
            continue
        with contextlib.suppress(IndexError):
            taken = world.handed.popleft()
            taken.check()
            if chance.random() < 0.7:
                taken.memory.free()


def look_after_free(world: World, chance: random.Random) -> None:
    """Keep views of what was freed."""
    memory = world.pool.allocate(chance.randrange(1, 10_000))
    view, array = memory.memoryview(), memory.as_array("uint8")
    part = memory[0:1]
    view[-1] = 7
    memory.free()
    del part
    world.pool.allocate(len(view)).fill(0)
    assert (view[-1], array[-1]) == (7, 7)


class Node:
    """Holds memory in a cycle; allocates and frees while the collector ends it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.itself = self

    def __del__(self) -> None:
        with contextlib.suppress(MemoryError):  # it may come within any limit
            self.memory.pool.allocate(700).free()


def leave_garbage(world: World, chance: random.Random) -> None:
    """Leave cycles to the collector, which comes at random."""
    gc.set_threshold(chance.randint(1, 500), chance.randint(1, 9), chance.randint(1, 9))
    for _ in range(10):
        Node(world.pool.allocate(chance.randrange(20_000)))


def inspect(world: World, chance: random.Random) -> None:
    """Ask for everything but memory."""
    pool = chance.choice(world.pools)
    looks: list[Callable[[], object]] = [pool.stats, pool.snapshot, pool.check]
    chance.choice(looks)()
    pool.trim(keep=chance.randrange(1 << 20))


def reach_limits(world: World, chance: random.Random) -> None:
    """Allocate until a pool, a tag or a device refuses."""
    madl.limit_device(world.device, chance.choice([None, "4 MiB", "64 MiB"]))
    pool = chance.choice([world.limited, world.simulated])
    held: list[Memory] = []
    with contextlib.suppress(MemoryError), madl.tag("bounded", limit="6 MiB"):
        while len(held) < 50:
            held.append(pool.allocate(chance.randrange(500_000)))


def reclaim(world: World, chance: random.Random) -> None:
    """Allocate at the limit while a reclaimer may give something up."""
    cache: list[Memory] = []
    remove = world.limited.on_out_of_memory(lambda _: cache.clear())
    with contextlib.suppress(MemoryError):
        cache.append(world.limited.allocate(chance.randrange(2 << 20)))
        world.limited.allocate(chance.randrange(8 << 20))
    remove()


def restore(world: World, chance: random.Random) -> None:
    """Use what may be spilled; there is room for it, whatever others do."""
    at = chance.randrange(len(world.spillables))
    with world.spillables[at] as memory:
        Handed(memory, at).check()


def record(world: World, chance: random.Random) -> None:
    """Record what all threads do."""
    if not world.recording.acquire(blocking=False):
        return
    try:
        path = world.folder / "run.trace.gz"
        with madl.record(path, stacks=chance.choice([0, 0, 3])):
            trade(world, chance)
        path.unlink()
    finally:
        world.recording.release()


def close_early(world: World, chance: random.Random) -> None:
    """Close a pool while others have memory of it."""
    with Pool("cpu", page_size="64 KiB") as pool:
        for _ in range(5):
            hand(world, pool, chance)


OFTEN: tuple[Work, ...] = (trade, restore, leave_garbage)
SELDOM: tuple[Work, ...] = (look_after_free, inspect, reach_limits, reclaim)
RARELY: tuple[Work, ...] = (record, close_early)
WORKS = 3 * OFTEN + 2 * SELDOM + RARELY


class Crowd:
    """Threads that work until they are paused, and measure while they are."""

    def __init__(self, world: World, thread_count: int) -> None:
        self.world = world
        self.count = 0
        self.taken: list[dict[str, int]] = []
        self._errors: list[BaseException] = []
        self._counting = threading.Lock()
        self._is_paused = self._is_over = False
        self._all = threading.Barrier(thread_count + 1)
        self._threads = [
            threading.Thread(target=self._repeat, args=(seed,), daemon=True)
            for seed in range(thread_count)
        ]

    def _repeat(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._is_over:
            self._all.wait()
            self._work(chance, lambda: self._is_paused)
            self._all.wait()
            self._all.wait()  # while it is measured

    def _work(self, chance: random.Random, is_done: Callable[[], bool]) -> None:
        count = 0
        try:
            while not (is_done() or self._errors):
                chance.choice(WORKS)(self.world, chance)
                count += 1
        except BaseException as error:
            self._errors.append(error)
        with self._counting:
            self.count += count

    def run(self, seconds: float) -> None:
        """Work for so long, with pauses, in this thread too: it handles signals."""
        for thread in self._threads:
            thread.start()
        chance = random.Random()
        for pause in range(1, PAUSES + 1):
            self.world.fill()
            self._is_paused = False
            self._all.wait()
            end = time.monotonic() + seconds / PAUSES
            with signals(self.world):
                self._work(chance, lambda end=end: time.monotonic() > end)  # type: ignore[misc]
            self._is_paused = True
            self._all.wait()
            if self._errors:
                raise self._errors[0]
            self.world.empty()
            self.taken.append(measure())
            self._is_over = pause == PAUSES
            self._all.wait()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def signals(world: World) -> Iterator[None]:
    """Let a handler that allocates and frees come every few milliseconds."""

    def handle(number: int, frame: object) -> None:
        began = time.monotonic()
        with contextlib.suppress(MemoryError):  # it may come within any limit
            world.interrupted.append(world.pool.allocate(1000 * number))
            world.simulated.allocate(5000).free()
        if len(world.interrupted) > 20:
            world.interrupted.popleft().free()
        # An interval would leave no time for anything else where a refusal takes long:
        # it collects garbage, which a limit refuses what its finalizers allocate.
        signal.setitimer(signal.ITIMER_REAL, 0.003 + 9 * (time.monotonic() - began))

    if sys.platform == "win32":  # it has no such timer
        yield
        return
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def measure() -> dict[str, int]:
    """Return what the process takes now; nothing where the system does not tell."""
    if sys.platform != "linux":
        return {}
    _trim_heap()
    status = Path("/proc/self/status").read_text("ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "anonymous_nbytes": int(fields["RssAnon"].split()[0]) * KIB,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
    }


def _trim_heap() -> None:
    """Let the C library give back what it keeps, which follows the threads' timing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)


def check_flat(
    taken: list[dict[str, int]], slack_nbytes: int
) -> dict[str, tuple[int, int]]:
    """Return the most of each figure in both halves, of which the second has no more.

    Raises:
        AssertionError: It has.
    """
    halves = taken[: PAUSES // 2], taken[PAUSES // 2 :]
    found = {}
    for what in taken[0]:
        first, second = (max(one[what] for one in half) for half in halves)
        found[what] = first, second
        slack = slack_nbytes if what.endswith("_nbytes") else 0
        assert second <= first + slack, (what, [one[what] for one in taken])
    return found


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--threads", type=int, default=8)
    asked = parser.parse_args()
    faulthandler.dump_traceback_later(asked.seconds * 3 + 75, exit=True)
    sys.setswitchinterval(1e-6)
    with tempfile.TemporaryDirectory() as folder:
        world = World(asked.threads, Path(folder))
        crowd = Crowd(world, asked.threads)
        crowd.run(asked.seconds)
    slack_nbytes = SLACK_NBYTES if asked.seconds >= WARM_S else COLD_SLACK_NBYTES
    figures = {
        "is_compiled": IS_COMPILED,
        "operations": crowd.count,
        "allocations": sum(pool.stats().allocation_count for pool in world.pools),
        "most in each half": check_flat(crowd.taken, slack_nbytes),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
