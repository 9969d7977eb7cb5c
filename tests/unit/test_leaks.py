"""``with madl.leak_check()`` finds what stays live."""

from collections.abc import Iterator

import pytest

import madl
from madl import LeakError, Memory, Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu") as pool:
        yield pool


def test_what_is_freed_inside_is_no_leak(pool: Pool) -> None:
    with madl.leak_check(pool):
        pool.allocate(8).free()
        pool.allocate(8)


def test_what_stays_live_is_a_leak(pool: Pool) -> None:
    held: list[Memory] = []

    def work() -> None:
        held.extend(pool.allocate(1024, tag="weights") for _ in range(2))
        held.append(pool.allocate(100))

    with pytest.raises(LeakError) as caught, madl.leak_check(pool):
        work()

    assert str(caught.value) == (
        "cpu: blocks that were not freed, by tag: weights: 2.0 KiB in 2, (no tag): "
        "100 B in 1. Try: free each Memory, or tag allocations to see where they come "
        "from"
    )
    assert caught.value.leaked == (("weights", (2048, 2)), ("(no tag)", (100, 1)))


def test_what_was_live_before_is_no_leak(pool: Pool) -> None:
    before = pool.allocate(8)

    with madl.leak_check(pool):
        pool.allocate(8).free()

    assert not before.is_freed


def test_a_free_of_something_older_hides_no_leak_of_another_size(pool: Pool) -> None:
    held = [pool.allocate(4096)]

    def work() -> None:
        held.append(pool.allocate(8))
        held.pop(0).free()

    with pytest.raises(LeakError) as caught, madl.leak_check(pool):
        work()

    assert caught.value.leaked == (("(no tag)", (8, 1)),)


def test_a_view_that_stays_is_a_leak(pool: Pool) -> None:
    with pytest.raises(LeakError) as caught, madl.leak_check(pool):
        array = pool.allocate(8, tag="array").as_array()

    assert array.nbytes == 8
    assert caught.value.leaked == (("array", (8, 1)),)


def test_what_only_a_cycle_holds_is_no_leak(pool: Pool) -> None:
    with madl.leak_check(pool):
        cycle: list[object] = [pool.allocate(8)]
        cycle.append(cycle)
        del cycle


def test_another_error_is_not_hidden(pool: Pool) -> None:
    held = []

    def work() -> None:
        held.append(pool.allocate(8))
        raise KeyError

    with pytest.raises(KeyError), madl.leak_check(pool):
        work()


def test_the_pool_in_use_is_checked_by_default(pool: Pool) -> None:
    with madl.use_pool(pool), pytest.raises(LeakError) as caught, madl.leak_check():
        memory = madl.allocate(8)

    assert memory.nbytes == 8
    assert caught.value.device == "cpu"
