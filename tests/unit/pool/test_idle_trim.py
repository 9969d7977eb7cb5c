"""``pool.trim_when_idle`` gives memory back when nothing happens."""

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from madl import Pool
from madl.backends.sim import SimBackend

MIB = 1 << 20


def until(is_true: Callable[[], bool]) -> bool:
    """Wait for what another thread does; give up after 20 seconds."""
    for _ in range(2000):
        if is_true():
            return True
        time.sleep(0.01)
    return False


def idle_threads() -> int:
    return sum(thread.name == "madl idle trim" for thread in threading.enumerate())


def test_no_thread_is_started_unless_asked_for() -> None:
    before = idle_threads()

    Pool("sim").allocate(MIB)

    assert idle_threads() == before


def test_an_idle_pool_is_trimmed() -> None:
    backend = SimBackend()
    with Pool(backend) as pool:
        stop = pool.trim_when_idle(0.01)
        pool.allocate(8 * MIB).free()

        assert until(lambda: backend.committed_nbytes == 0)
        pool.allocate(8 * MIB).free()
        assert until(lambda: backend.committed_nbytes == 0)
        stop()


def test_what_is_to_be_kept_is_kept() -> None:
    backend = SimBackend()
    with Pool(backend) as pool:
        pool.allocate(16 * MIB).free()
        stop = pool.trim_when_idle(0.01, keep="4 MiB")

        assert until(lambda: backend.committed_nbytes <= 4 * MIB)
        assert backend.committed_nbytes == 4 * MIB
        stop()


def test_a_pool_that_stopped_it_keeps_its_memory() -> None:
    backend = SimBackend()
    before = idle_threads()
    with Pool(backend) as pool:
        pool.trim_when_idle(0.01)()
        assert until(lambda: idle_threads() == before)
        pool.allocate(8 * MIB).free()

        assert backend.committed_nbytes == 8 * MIB


def test_the_thread_keeps_no_pool_and_ends_with_it() -> None:
    before = idle_threads()
    pool = Pool("sim")
    gone = weakref.ref(pool)
    pool.trim_when_idle(0.01)

    del pool

    def is_gone() -> bool:
        gc.collect()
        # One of an earlier test may have ended as well.
        return gone() is None and idle_threads() <= before

    assert until(is_gone)


@pytest.mark.parametrize("after_s", [0, -1.0, float("nan"), float("inf"), 1e100])
def test_a_time_that_nobody_can_wait_is_refused(after_s: float) -> None:
    with pytest.raises(
        ValueError, match=r"^after_s must be positive, at most \d+, got"
    ):
        Pool("sim").trim_when_idle(after_s)


def test_a_time_must_be_a_number() -> None:
    with pytest.raises(TypeError, match=r"^after_s must be a number of seconds"):
        Pool("sim").trim_when_idle("1")  # type: ignore[arg-type]  # the point
