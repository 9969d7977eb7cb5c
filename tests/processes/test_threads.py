"""Many threads in one pool."""

import contextlib
import random
import threading
from collections.abc import Callable

import numpy as np
import pytest

import madl
from madl import Memory, Pool

THREADS = 6
pytestmark = pytest.mark.usefixtures("quick_switches")


def run(*work: Callable[[], object]) -> None:
    """Run each in a thread of its own, all at once; raise the first error."""
    start = threading.Barrier(len(work))
    errors: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_each_thread_keeps_its_content() -> None:
    pool = Pool("cpu", page_size="64 KiB")

    def work(seed: int) -> None:
        chance = random.Random(seed)
        held: list[tuple[Memory, int]] = []
        for step in range(700):
            memory = pool.allocate(chance.randrange(1, 30_000))
            memory.fill(step % 256)
            held.append((memory, step % 256))
            if len(held) > 20:
                memory, byte = held.pop(chance.randrange(len(held)))
                assert np.asarray(memory).min() == np.asarray(memory).max() == byte
                memory.free()

    run(*(lambda seed=seed: work(seed) for seed in range(THREADS)))

    pool.check()
    stats = pool.stats()
    assert stats.live_nbytes == 0
    assert stats.allocation_count == stats.free_count == 700 * THREADS


def test_one_thread_frees_what_another_allocates() -> None:
    pool = Pool("sim")
    handed: list[Memory] = []

    def give() -> None:
        for nbytes in range(3000):
            handed.append(pool.allocate(nbytes))

    def take() -> None:
        taken = 0
        while taken < 3000:
            with contextlib.suppress(IndexError):
                handed.pop().free()
                taken += 1

    run(give, give, take, take)

    pool.check()
    assert pool.stats().live_nbytes == 0


def test_figures_may_be_asked_for_at_any_time() -> None:
    pool = Pool("sim")
    done = threading.Event()
    seen: list[bool] = []

    def work(nbytes: int) -> None:
        for _ in range(3000):
            pool.allocate(nbytes).free()

    def work_all() -> None:
        run(*(lambda n=n: work(1000 * n) for n in range(1, 5)))
        done.set()

    def look() -> None:
        while not done.is_set():
            pool.check()
            pool.snapshot()
            stats = pool.stats()
            seen.append(
                stats.padding_nbytes >= 0 and 0 <= stats.fragmentation_ratio <= 1
            )

    run(work_all, look)

    assert seen
    assert all(seen)


def test_a_limit_holds_for_all_threads() -> None:
    pool = Pool("sim", limit="4 MiB")
    refused: list[int] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        held: list[Memory] = []
        for _ in range(200):
            try:
                held.append(pool.allocate(chance.randrange(400_000)))
            except madl.OutOfMemoryError:
                refused.append(1)
                held.clear()

    run(*(lambda seed=seed: work(seed) for seed in range(4)))

    pool.check()
    assert refused
    assert pool.stats().committed_high_water_nbytes <= 4 << 20
    assert pool.stats().live_nbytes == 0


def test_trim_and_close_may_come_at_any_time() -> None:
    pool = Pool("cpu", page_size="64 KiB")

    def allocate() -> None:
        for nbytes in range(1, 10_000_000):
            pool.allocate(nbytes * 7 % 50_000 + 1).fill(1)

    def work() -> None:
        with pytest.raises(ValueError, match=r"^a closed pool of cpu allocates noth"):
            allocate()

    def trim() -> None:
        for _ in range(100):
            pool.trim()
        pool.close()

    run(work, work, work, trim)

    pool.check()
    assert pool.stats().live_nbytes == 0
    assert pool.stats().committed_nbytes == 0
