"""What a pool has committed is counted, whatever comes in the middle of a count."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

import madl
from madl import CorruptedPoolError, OutOfMemoryError, Pool
from madl.backends.sim import SimBackend
from madl.pool.allocate import parts_of
from tests.interruptions import comes_between

UNIT = 16 << 10


class Case:
    """A pool whose device has a limit as well, and a handler that allocates."""

    def __init__(self, *, pooling: bool) -> None:
        device = SimBackend(total_nbytes=64 * UNIT)
        self.pool = Pool(device, limit=16 * UNIT, page_size=UNIT, pooling=pooling)
        madl.limit_device(device, 16 * UNIT)
        self.held = [self.pool.allocate(3 * UNIT), self.pool.allocate(3 * UNIT)]
        self.held.pop(0).free()

    def take(self) -> bool:
        try:
            self.held.append(self.pool.allocate(2 * UNIT))
        except OutOfMemoryError:
            return False
        return True

    def trim_after_an_interruption(self) -> None:
        parts_of(self.pool).shared.was_interrupted = True
        self.pool.trim()

    def take_more(self) -> None:
        with contextlib.suppress(OutOfMemoryError):
            self.held.append(self.pool.allocate(5 * UNIT))

    def verify(self) -> None:
        """The figures are those of what is there, and within the limits."""
        shared = parts_of(self.pool).growth.budget.device
        while self.take():
            pass
        self.pool.check()
        stats = self.pool.stats()
        assert stats.live_nbytes == sum(memory.nbytes for memory in self.held)
        assert stats.live_nbytes <= stats.committed_nbytes <= 16 * UNIT
        assert shared.committed_nbytes == stats.committed_nbytes
        self.held.clear()
        self.pool.trim()
        assert self.pool.stats().committed_nbytes == shared.committed_nbytes == 0


def every_moment(
    make: Callable[[], Case], act: Callable[[Case], None]
) -> Iterator[Case]:
    """Yield a case for each moment of ``act``, at which another call came."""
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        case = make()
        is_inside = comes_between(lambda: act(case), moments, case.take)  # noqa: B023  # called at once
        yield case


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("act", [Case.trim_after_an_interruption, Case.take_more])
def test_what_a_handler_allocates_meanwhile_counts(
    act: Callable[[Case], None], pooling: bool
) -> None:
    moments = 0

    for case in every_moment(lambda: Case(pooling=pooling), act):
        case.verify()
        moments += 1

    assert moments > 20


def test_a_refusal_without_pooling_is_no_interruption() -> None:
    pool = Pool(SimBackend(), limit=4 * UNIT, page_size=UNIT, pooling=False)
    held = pool.allocate(3 * UNIT)
    seen: list[bool] = []
    pool.on_out_of_memory(
        lambda nbytes: seen.append(parts_of(pool).shared.was_interrupted)
    )

    with pytest.raises(OutOfMemoryError):
        pool.allocate(2 * UNIT)

    assert seen == [False]
    held.free()


def test_check_sees_committed_bytes_that_nobody_counts() -> None:
    pool = Pool(SimBackend(), limit=4 * UNIT, page_size=UNIT)
    held = pool.allocate(3 * UNIT)
    committed = pool.stats().committed_nbytes
    parts_of(pool).growth.budget.committed_nbytes -= 512

    with pytest.raises(CorruptedPoolError) as caught:
        pool.check()

    assert caught.value.args == (
        "bytes committed, by the pool and its device",
        (committed - 512, committed),
        (committed, committed),
    )
    parts_of(pool).growth.budget.committed_nbytes += 512
    pool.check()
    held.free()


def test_and_those_that_the_device_counts_for_a_pool_that_has_none() -> None:
    pool = Pool(SimBackend(), limit=4 * UNIT, page_size=UNIT)
    budget = parts_of(pool).growth.budget
    budget.device.correct(budget, 512)

    with pytest.raises(CorruptedPoolError) as caught:
        pool.check()

    assert caught.value.found == (0, 512)
    budget.device.correct(budget, 0)
    pool.check()
