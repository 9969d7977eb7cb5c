"""Finalizers, the collector and signal handlers, in the middle of every operation."""

import contextlib
import gc
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

import madl
from madl import Memory, Pool
from madl.backends.protocol import Reservation
from madl.backends.sim import SimBackend
from madl.hotpath import IS_COMPILED
from tests.programs import output_of

KIB = 1024


class Node:
    """Holds memory in a cycle with itself, so that only the collector frees it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.itself = self


class LoudNode(Node):
    """Allocates and frees while the collector ends it."""

    def __del__(self) -> None:
        pool = self.memory.pool
        pool.allocate(random.randrange(20_000)).free()
        pool.allocate(100)


class InterruptedBackend(SimBackend):
    """Runs something in the middle of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupt: Callable[[], object] = lambda: None

    def reserve(self, nbytes: int) -> Reservation:
        self.interrupt()
        return super().reserve(nbytes)

    def release(self, reservation: Reservation) -> None:
        super().release(reservation)
        self.interrupt()

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        self.interrupt()
        super().commit(reservation, offset, nbytes)
        self.interrupt()

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        self.interrupt()
        super().decommit(reservation, offset, nbytes)


@pytest.fixture
def collector() -> Iterator[None]:
    """Leave the collector as it was."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.enable()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("kind", [Node, LoudNode])
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("seed", range(2))
def test_three_thousand_allocations_held_by_cycles(
    kind: type[Node], device: str, seed: int
) -> None:
    chance = random.Random(seed)
    pool = Pool(device, page_size="16 KiB")

    for step in range(3000):
        gc.set_threshold(chance.randint(1, 60), chance.randint(1, 5), 2)
        alignment = chance.choice([None, None, None, 4096])
        tag = chance.choice([None, None, "a"])
        kind(pool.allocate(chance.randrange(20_000), alignment=alignment, tag=tag))
        if step % 50 == 0:
            looks: list[Callable[[], object]]
            looks = [pool.trim, pool.stats, pool.snapshot, pool.check]
            chance.choice(looks)()
    gc.collect()
    gc.collect()

    pool.check()
    stats = pool.stats()
    assert stats.live_nbytes == 0
    assert stats.tags["a"].live_nbytes == 0


@pytest.mark.parametrize("seed", range(5))
def test_memory_may_come_and_go_in_the_middle_of_every_call_of_the_device(
    seed: int,
) -> None:
    chance = random.Random(seed)
    backend = InterruptedBackend()
    pool = Pool(backend, page_size="16 KiB", limit="4 MiB")
    held: list[Memory] = []

    def interrupt() -> None:
        backend.interrupt = lambda: None
        # Seldom: what is allocated here makes another call, when it is freed.
        if chance.random() < 0.3:
            with contextlib.suppress(MemoryError):
                held.append(pool.allocate(chance.randrange(20_000)))
        del held[: chance.randrange(3)]
        backend.interrupt = interrupt

    backend.interrupt = interrupt
    for _ in range(1500):
        try:
            held.append(pool.allocate(chance.randrange(50_000)))
        except MemoryError:
            held.clear()
        if chance.random() < 0.4 and held:
            held.pop(chance.randrange(len(held))).free()
        if chance.random() < 0.05:
            pool.trim(chance.randrange(1 << 20))
    backend.interrupt = lambda: None

    pool.check()
    assert pool.stats().live_nbytes == sum(memory.nbytes for memory in held)


def test_memory_allocated_within_a_call_is_apart_and_counted() -> None:
    backend = InterruptedBackend()
    pool = Pool(backend)
    inside: list[Memory] = []

    def interrupt() -> None:
        backend.interrupt = lambda: None
        inside.append(pool.allocate(100))

    backend.interrupt = interrupt
    outside = pool.allocate(1000)

    stats = pool.stats()
    assert stats.live_nbytes == 1100
    assert (inside[0].nbytes, outside.nbytes) == (100, 1000)
    assert [
        sum(block.state == "live" for block in arena.blocks)
        for arena in pool.snapshot().arenas
    ].count(1) == 2
    inside[0].free()
    pool.trim()
    assert pool.stats().live_nbytes == 1000


def test_threads_within_calls_of_two_pools_may_allocate_from_the_other() -> None:
    backends = [InterruptedBackend(), InterruptedBackend()]
    pools = [Pool(backend, page_size="16 KiB") for backend in backends]
    both_are_inside = threading.Barrier(2, timeout=20)
    held: list[Memory] = []

    def work(here: int) -> None:
        def interrupt() -> None:
            backends[here].interrupt = lambda: None
            both_are_inside.wait()
            held.append(pools[1 - here].allocate(50_000))
            both_are_inside.wait()

        backends[here].interrupt = interrupt
        held.append(pools[here].allocate(40_000))

    threads = [
        threading.Thread(target=work, args=(here,), daemon=True) for here in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not any(thread.is_alive() for thread in threads)
    assert len(held) == 4
    for pool in pools:
        pool.check()
    held.clear()
    assert [pool.stats().live_nbytes for pool in pools] == [0, 0]
    for pool in pools:
        pool.trim()
    assert [pool.stats().committed_nbytes for pool in pools] == [0, 0]


def test_nothing_but_memory_is_to_be_had_within_a_call() -> None:
    backend = InterruptedBackend()
    pool = Pool(backend)
    texts: list[str] = []

    def interrupt() -> None:
        for call in (pool.stats, pool.trim, pool.close, pool.check, pool.snapshot):
            with pytest.raises(RuntimeError) as caught:
                call()
            texts.append(str(caught.value))

    backend.interrupt = interrupt
    memory = pool.allocate(8)

    assert memory.nbytes == 8
    assert set(texts) == {
        "<madl.Pool on sim: 0 bytes live> is in the middle of a call of this thread; "
        "signal handlers and finalizers may allocate and free, nothing else"
    }


class Late:
    """Uses what it holds while the collector ends all of a cycle."""

    def __init__(self, *held: object) -> None:
        self.held = held
        self.itself = self
        self.seen: list[str] = []

    def __del__(self) -> None:
        for one in self.held:
            if isinstance(one, memoryview):
                one[:4] = b"late"
            elif isinstance(one, Memory) and one.nbytes:
                with contextlib.suppress(madl.FreedMemoryError):
                    one.fill(1)


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("is_closed", [False, True])
def test_views_stay_usable_while_a_cycle_with_their_pool_ends(
    order: int, is_closed: bool
) -> None:
    late = Late() if order % 2 else None
    pool = Pool("cpu")
    memory = pool.allocate(100)
    view = memory.memoryview() if order < 4 else memory[0:50].memoryview()
    late = late or Late()
    late.held = (pool, view, memory) if order % 3 else (memory, view, pool)
    is_gone = weakref.ref(pool)
    if is_closed:
        pool.close()
    del pool, memory, view, late

    gc.collect()
    gc.collect()

    assert is_gone() is None


def test_a_handle_that_a_finalizer_saves_is_freed_once() -> None:
    saved: list[Memory] = []
    pool = Pool("sim")

    class Saving(Node):
        def __del__(self) -> None:
            saved.append(self.memory)

    Saving(pool.allocate(100))
    gc.collect()
    others = [pool.allocate(100) for _ in range(10)]

    if not saved[0].is_freed:  # else its own finalizer came first
        saved[0].free()
    pool.check()
    assert pool.stats().live_nbytes == sum(memory.nbytes for memory in others)


@pytest.mark.skipif(IS_COMPILED, reason="the collector does not see a compiled Memory")
def test_a_reclaimer_that_holds_memory_does_not_keep_a_dropped_pool() -> None:
    pool = Pool("sim")
    memory = pool.allocate(100)

    def give_up(_: int, memory: Memory = memory) -> None:
        memory.free()

    pool.on_out_of_memory(give_up)
    is_gone = weakref.ref(pool)
    del pool, memory, give_up

    gc.collect()

    assert is_gone() is None


def test_weakref_callbacks_may_allocate_and_free() -> None:
    pool = Pool("sim")
    held: list[Memory] = []

    class Thing:
        pass

    things = [Thing() for _ in range(100)]
    references = [
        weakref.ref(thing, lambda _: held.append(pool.allocate(700)))
        for thing in things
    ]
    things.clear()

    assert len(references) == len(held) == 100
    pool.check()


STORM = """
import faulthandler, signal, sys, time
import madl

faulthandler.dump_traceback_later(40, exit=True)
pool = madl.Pool("cpu", page_size=4096)
held, is_inside, handled = [], False, 0

def handle(*_):
    global is_inside, handled
    if is_inside:
        return
    is_inside = True
    handled += 1
    held.append(pool.allocate(1000 + handled % 5000 * 512))
    held[-1].memoryview()[:4] = b"sign"
    if len(held) > 20:
        held.pop(0).free()
        held.pop(0)
    is_inside = False

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
end = time.monotonic() + 3
turn = 0
while time.monotonic() < end:
    turn += 1
    memory = pool.allocate(512 * (turn % 4000) + 1)
    view = memory.memoryview()
    memory.free()
    if turn % 50 == 0:
        (pool.trim, pool.stats, pool.check, pool.snapshot)[turn // 50 % 4]()
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
del view
held.clear()
pool.check()
assert handled > 100, handled
assert pool.stats().live_nbytes == 0
assert pool.close().live_count == 0
assert pool.stats().committed_nbytes == 0
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_signal_handlers_may_allocate_and_free() -> None:
    assert output_of("-c", STORM) == ""


def test_a_collector_in_another_thread_frees_what_this_one_dropped() -> None:
    pool = Pool("cpu", page_size="16 KiB")
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    for nbytes in range(2000):
        Node(pool.allocate(nbytes * 10))
    stop.set()
    thread.join()
    gc.collect()

    pool.check()
    assert pool.stats().live_nbytes == 0
