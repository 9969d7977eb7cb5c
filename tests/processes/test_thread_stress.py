"""All calls in many threads; TEST_MADL_STRESS_S seconds a test, else short."""

import ctypes
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

import madl
from madl import Memory, Pool

SECONDS = float(os.environ.get("TEST_MADL_STRESS_S", "1"))
pytestmark = [
    pytest.mark.timeout(60 + 4 * SECONDS),
    pytest.mark.usefixtures("quick_switches"),
]


class Crowd:
    """Threads that do what they are given until the time is up."""

    def __init__(self) -> None:
        self.end = time.monotonic() + SECONDS
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def add(self, work: Callable[[random.Random], object]) -> None:
        """Call ``work`` over and over in a thread of its own."""
        seed = len(self.threads)
        self.threads.append(threading.Thread(target=self._repeat, args=(work, seed)))

    def _repeat(self, work: Callable[[random.Random], object], seed: int) -> None:
        chance = random.Random(seed)
        try:
            while time.monotonic() < self.end and not self.errors:
                work(chance)
        except BaseException as error:
            self.errors.append(error)

    def run(self) -> None:
        """Wait for all; raise the first error."""
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


def look_at(pool: Pool) -> Callable[[random.Random], object]:
    """Return work that asks a pool for everything but memory."""

    def look(chance: random.Random) -> None:
        looks: list[Callable[[], object]]
        looks = [pool.trim, pool.stats, pool.snapshot, pool.check]
        chance.choice(looks)()

    return look


def trade_in(pool: Pool) -> Callable[[random.Random], object]:
    """Return work that allocates and frees what other threads have allocated."""
    handed: deque[Memory] = deque()

    def trade(chance: random.Random) -> None:
        for _ in range(100):
            nbytes = chance.choice([0, 100, 1000, 5000, chance.randrange(3_000_000)])
            tag = chance.choice([None, None, None, "a", "b"])
            handed.append(pool.allocate(nbytes, tag=tag))
            if len(handed) < 50:
                continue
            memory = handed.popleft()  # likely another thread's
            if memory.nbytes and chance.random() < 0.1:
                memory.memoryview()[-1] = 1
            if chance.random() < 0.5:
                memory.free()

    return trade


@pytest.mark.parametrize(
    ("device", "threads"), [("cpu", 2), ("cpu", 4), ("cpu", 8), ("sim", 4)]
)
def test_allocating_freeing_and_looking_at_once(device: str, threads: int) -> None:
    pool = Pool(device, page_size="64 KiB")
    crowd = Crowd()
    trade = trade_in(pool) if device == "cpu" else churn_in(pool)
    for _ in range(threads):
        crowd.add(trade)
    crowd.add(look_at(pool))

    crowd.run()
    del trade
    crowd.threads.clear()

    pool.check()
    stats = pool.stats()
    assert stats.live_nbytes == 0
    assert stats.allocation_count == stats.free_count > 0
    assert stats.padding_nbytes == 0
    pool.trim()
    assert pool.stats().committed_nbytes == 0


def churn_in(pool: Pool) -> Callable[[random.Random], object]:
    """Return work of few sizes, so that all threads meet in the same bins."""

    def churn(chance: random.Random) -> None:
        held = [pool.allocate(chance.choice([512, 1024, 100_000])) for _ in range(30)]
        chance.shuffle(held)
        for memory in held[:15]:
            memory.free()

    return churn


def test_views_of_one_handle_in_two_threads_free_its_block_once() -> None:
    pool = Pool("cpu")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        memory = pool.allocate(4096)
        start = threading.Barrier(2)

        def look(memory: Memory = memory, start: threading.Barrier = start) -> None:
            start.wait()
            memory.memoryview()

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del look, threads
        memory.free()

        assert pool.stats().live_nbytes == 0


def test_tags_of_many_threads_add_up() -> None:
    pool = Pool("sim")
    crowd = Crowd()

    def work(_: random.Random) -> None:
        with madl.tag("x"):
            pool.allocate(1000).free()
            pool.allocate(700)

    for _ in range(4):
        crowd.add(work)
    crowd.add(look_at(pool))

    crowd.run()

    usage = pool.stats().tags["x"]
    assert (usage.live_nbytes, usage.padding_nbytes) == (0, 0)
    assert usage.allocation_count == usage.free_count


@pytest.mark.parametrize("to", ["host", "file"])
def test_threads_find_room_for_what_they_restore(
    to: Literal["host", "file"],
) -> None:
    """There is as much as all of them use at once, if the rest is spilled."""
    threads, nbytes = 4, 1 << 17
    pool = Pool("cpu", limit=threads * nbytes)
    spillables = []
    for byte in range(3 * threads):
        memory = pool.allocate(nbytes)
        memory.fill(byte)
        spillables.append(madl.Spillable(memory, to=to))
    del memory
    crowd = Crowd()

    def use(chance: random.Random) -> None:
        byte = chance.randrange(len(spillables))
        with spillables[byte] as memory:
            assert memory.tobytes() == bytes([byte]) * nbytes

    for _ in range(threads):
        crowd.add(use)

    crowd.run()

    pool.check()


def test_one_handle_is_freed_by_one_thread() -> None:
    pool = Pool("sim")
    crowd = Crowd()
    shared = [pool.allocate(64) for _ in range(4)]
    freed: deque[int] = deque()

    def work(chance: random.Random) -> None:
        i = chance.randrange(4)
        try:
            shared[i].free()
        except madl.FreedMemoryError:
            return
        freed.append(1)
        shared[i] = pool.allocate(64)

    for _ in range(4):
        crowd.add(work)

    crowd.run()

    pool.check()
    shared.clear()
    stats = pool.stats()
    assert stats.live_nbytes == 0
    assert stats.allocation_count == stats.free_count == len(freed) + 4


class Functions:
    """The C functions over a pool, called with the interpreter's lock released."""

    def __init__(self, pool: Pool) -> None:
        native = pytest.importorskip("madl.native.functions")
        found = native.native_functions(pool)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.context = found.context
        self.malloc = ctypes.CFUNCTYPE(pointer, pointer, size)(found.malloc)
        self.calloc = ctypes.CFUNCTYPE(pointer, pointer, size, size)(found.calloc)
        self.realloc = ctypes.CFUNCTYPE(pointer, pointer, pointer, size)(found.realloc)
        self.free = ctypes.CFUNCTYPE(None, pointer, pointer, size)(found.free)
        self.time_pairs: Callable[..., Any] = native.time_pairs
        self.found = found


def test_c_functions_and_python_in_one_pool() -> None:
    pool = Pool("cpu", page_size="64 KiB")
    functions = Functions(pool)
    crowd = Crowd()
    handed: deque[tuple[int, int, int]] = deque()

    def call(chance: random.Random) -> None:
        nbytes = chance.choice([1, 64, 1000, 5000, chance.randrange(1, 300_000)])
        byte = chance.randrange(1, 256)
        if chance.random() < 0.3:
            address = functions.calloc(functions.context, 1, nbytes)
            assert not any(ctypes.string_at(address, min(nbytes, 64)))
        else:
            address = functions.malloc(functions.context, nbytes)
        ctypes.memset(address, byte, nbytes)
        handed.append((address, nbytes, byte))
        if len(handed) < 40:
            return
        address, nbytes, byte = handed.popleft()
        if chance.random() < 0.3:
            larger = nbytes + chance.randrange(10_000)
            address = functions.realloc(functions.context, address, larger)
        content = np.frombuffer(ctypes.string_at(address, nbytes), "uint8")
        assert content.min() == content.max() == byte
        functions.free(functions.context, address, nbytes)

    def race(_: random.Random) -> None:
        functions.time_pairs(functions.found, 1000, 20_000)

    for work in (call, call, race, race, churn_in(pool), churn_in(pool)):
        crowd.add(work)
    crowd.add(look_at(pool))

    crowd.run()
    for address, nbytes, _ in handed:
        functions.free(functions.context, address, nbytes)

    pool.check()
    assert pool.stats().live_nbytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_c_code_allocates_leaves_a_usable_pool() -> None:
    pool = Pool("cpu")
    functions = Functions(pool)
    crowd = Crowd()
    codes: list[int] = []

    def race(_: random.Random) -> None:
        functions.time_pairs(functions.found, 1000, 20_000)

    def fork(_: random.Random) -> None:
        process = os.fork()
        if process == 0:
            ctypes.CDLL(None).alarm(5)  # a child that hangs ends by the signal
            pool.allocate(1000).free()
            pool.check()
            os._exit(0)
        codes.append(os.waitpid(process, 0)[1])

    crowd.add(race)
    crowd.add(fork)

    crowd.run()

    assert codes
    assert not any(codes)
