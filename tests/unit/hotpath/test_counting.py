"""The lock of counts, where there is no interpreter lock: who holds it never waits."""

import threading

import pytest

from madl import Pool
from madl.hotpath.reentrancy import Counting, is_inside
from madl.pool.allocate import parts_of


def test_who_counts_is_inside_until_the_outermost_count_ends() -> None:
    counting = Counting()
    seen = []

    with counting:
        with counting:
            seen.append(is_inside())
        seen.append(is_inside())
    seen.append(is_inside())

    assert seen == [True, True, False]


def test_an_error_ends_a_count() -> None:
    counting = Counting()

    with pytest.raises(ZeroDivisionError), counting:
        _ = 1 / 0

    assert not is_inside()
    assert counting.lock.acquire(blocking=False)


def test_an_allocation_in_the_middle_of_a_count_waits_for_no_pool() -> None:
    counting, pool = Counting(), Pool("sim")
    is_held, has_counted = threading.Event(), threading.Event()

    def hold_the_pool_and_count() -> None:
        def count() -> None:
            is_held.set()
            with counting:
                has_counted.set()

        parts_of(pool).lock.hold(count)

    thread = threading.Thread(target=hold_the_pool_and_count)
    with counting:
        thread.start()
        is_held.wait()
        memory = pool.allocate(5000)  # as a signal handler may

    thread.join()
    assert has_counted.is_set()
    assert memory.nbytes == 5000
    pool.check()
