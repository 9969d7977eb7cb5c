"""What is asked to give memory up before a request fails."""

import functools
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest

from madl import OutOfMemoryError, Pool
from madl.pool.allocate import parts_of
from tests.interruptions import comes_between

MIB = 1 << 20


@pytest.fixture
def pool() -> Pool:
    return Pool("sim", limit=4 * MIB)


def test_a_reclaimer_makes_room(pool: Pool) -> None:
    cache = [pool.allocate(4 * MIB)]
    asked: list[int] = []

    def give_up(nbytes: int) -> None:
        asked.append(nbytes)
        cache.clear()

    pool.on_out_of_memory(give_up)
    memory = pool.allocate(MIB + 1)

    assert memory.nbytes == MIB + 1
    assert asked == [MIB + 512]


def test_reclaimers_run_by_priority_then_in_order_of_registration(pool: Pool) -> None:
    held = pool.allocate(4 * MIB)
    ran: list[str] = []
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("early", -1)):
        pool.on_out_of_memory(
            lambda _, name=name: ran.append(name),  # type: ignore[misc]
            priority=priority,
        )

    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)

    assert held.nbytes == 4 * MIB
    assert ran == ["early", "first", "second", "late"]


def test_no_more_reclaimers_run_than_are_needed(pool: Pool) -> None:
    cache = [pool.allocate(4 * MIB)]
    ran: list[int] = []
    pool.on_out_of_memory(lambda _: cache.clear())
    pool.on_out_of_memory(ran.append, priority=1)

    pool.allocate(MIB)

    assert ran == []


def test_no_reclaimer_runs_for_what_no_limit_would_hold(pool: Pool) -> None:
    ran: list[int] = []
    pool.on_out_of_memory(ran.append)

    with pytest.raises(OutOfMemoryError):
        pool.allocate(4 * MIB + 1)

    assert ran == []


def test_a_reclaimer_runs_with_no_lock_held(pool: Pool) -> None:
    cache = [pool.allocate(4 * MIB)]

    def give_up(_: int) -> None:
        cache.clear()
        pool.trim()
        pool.check()

    pool.on_out_of_memory(give_up)

    assert pool.allocate(MIB).nbytes == MIB


def test_a_reclaimer_may_allocate_and_does_not_run_again_for_it(pool: Pool) -> None:
    held = pool.allocate(3 * MIB)
    ran: list[int] = []

    def copy_first(nbytes: int) -> None:
        ran.append(pool.allocate(MIB // 2).nbytes)
        pool.allocate(nbytes)

    pool.on_out_of_memory(copy_first)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(2 * MIB)

    assert held.nbytes == 3 * MIB
    assert ran == [MIB // 2]
    assert isinstance(caught.value.__context__, OutOfMemoryError)


def fail(_: int) -> None:
    raise RuntimeError("a reclaimer's own")


def test_the_error_of_a_reclaimer_becomes_the_context(pool: Pool) -> None:
    held = pool.allocate(4 * MIB)
    pool.on_out_of_memory(fail)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(MIB)

    assert held.nbytes == 4 * MIB
    assert repr(caught.value.__context__) == 'RuntimeError("a reclaimer\'s own")'


def test_the_context_is_kept_when_the_caller_handles_another_error(
    pool: Pool,
) -> None:
    held = pool.allocate(4 * MIB)
    pool.on_out_of_memory(fail)

    def work() -> None:
        try:
            raise KeyError
        except KeyError:
            pool.allocate(MIB)

    with pytest.raises(OutOfMemoryError) as caught:
        work()

    assert held.nbytes == 4 * MIB
    assert isinstance(caught.value.__context__, RuntimeError)


def test_an_error_of_a_reclaimer_does_not_stop_the_others(pool: Pool) -> None:
    cache = [pool.allocate(4 * MIB)]
    pool.on_out_of_memory(fail)
    pool.on_out_of_memory(lambda _: cache.clear(), priority=1)

    assert pool.allocate(MIB).nbytes == MIB


def test_an_interruption_in_a_reclaimer_gets_through(pool: Pool) -> None:
    held = pool.allocate(4 * MIB)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    pool.on_out_of_memory(interrupt)

    with pytest.raises(KeyboardInterrupt):
        pool.allocate(MIB)

    assert held.nbytes == 4 * MIB
    pool.check()


def test_a_reclaimer_is_removed_by_what_registering_returned(pool: Pool) -> None:
    held = pool.allocate(4 * MIB)
    ran: list[int] = []
    remove: Callable[[], None] = pool.on_out_of_memory(ran.append)

    remove()
    remove()
    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)

    assert held.nbytes == 4 * MIB
    assert ran == []


def every_moment(
    act: Callable[[], object], handler: Callable[[], object]
) -> Iterator[None]:
    """Do both, the second at each moment of the first in turn."""
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        is_inside = comes_between(act, moments, handler)
        yield
    assert moments > 2


def test_reclaimers_that_come_at_once_are_all_registered(pool: Pool) -> None:
    removals: list[Callable[[], None]] = []

    def register() -> None:
        removals.append(pool.on_out_of_memory(lambda _: None))

    for _ in every_moment(register, register):
        steps = list(parts_of(pool).reclaimers.steps(1))
        assert len(steps) == len(removals) + 1  # and the collector


def test_one_that_goes_while_another_comes_is_gone() -> None:
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        pool = Pool("sim", limit=4 * MIB)
        remove = pool.on_out_of_memory(lambda _: None)
        register = functools.partial(pool.on_out_of_memory, lambda _: None)
        is_inside = comes_between(register, moments, remove)
        left = len(list(parts_of(pool).reclaimers.steps(1))) - 1  # the collector
        assert left == (1 if is_inside else 2)

    assert moments > 2


def test_a_closed_pool_has_no_reclaimers_and_so_no_blocks_of_its_own() -> None:
    pool = Pool("sim", limit=4 * MIB)
    cache = [pool.allocate(MIB, tag="weights")]
    pool.on_out_of_memory(lambda _, cache=cache: cache.clear())  # type: ignore[misc]  # its own default
    ended = weakref.ref(pool)

    pool.close()
    del pool, cache
    gc.collect()

    assert ended() is None


def test_cycles_are_collected_last(pool: Pool) -> None:
    gc.disable()
    try:
        cycle: list[object] = [pool.allocate(4 * MIB)]
        cycle.append(cycle)
        del cycle

        assert pool.allocate(4 * MIB).nbytes == 4 * MIB
    finally:
        gc.enable()


def test_the_error_reports_what_was_tried(pool: Pool) -> None:
    held = [pool.allocate(2 * MIB), pool.allocate(MIB), pool.allocate(MIB)]

    def give_one(_: int) -> None:
        held.pop()

    pool.on_out_of_memory(give_one)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(3 * MIB)

    name = f"reclaimer {give_one.__qualname__}"
    assert caught.value.report.tried == (
        ("flush", 0),
        (name, MIB),
        ("garbage collection", 0),
    )
    assert "tried       0 B from flush\n              1.0 MiB from" in str(caught.value)


def test_the_error_is_pickled_with_its_report(pool: Pool) -> None:
    held = pool.allocate(4 * MIB, tag="a")
    with pytest.raises(MemoryError) as caught:
        pool.allocate(MIB)

    loaded = pickle.loads(pickle.dumps(caught.value))

    assert held.nbytes == 4 * MIB
    assert isinstance(loaded, OutOfMemoryError)
    assert (loaded.report, str(loaded)) == (
        caught.value.report,  # type: ignore[attr-defined]
        str(caught.value),
    )


@pytest.mark.parametrize("callback", [fail, lambda _: None], ids=["fails", "runs"])
def test_an_error_that_was_handled_keeps_nothing_live(
    pool: Pool, callback: Callable[[int], object]
) -> None:
    pool.on_out_of_memory(callback)

    def work() -> None:
        held = []
        try:
            while True:
                held.append(pool.allocate(MIB))
        except OutOfMemoryError:
            pass

    gc.disable()
    try:
        work()

        assert pool.stats().live_nbytes == 0
    finally:
        gc.enable()


def test_a_failure_changes_no_figure(pool: Pool) -> None:
    held = pool.allocate(4 * MIB)
    before = pool.stats()

    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)

    after = pool.stats()
    assert held.nbytes == 4 * MIB
    for name in ("live_nbytes", "committed_nbytes", "allocation_count", "free_count"):
        assert getattr(after, name) == getattr(before, name), name
