"""Frees that somebody watches, who fails."""

import pytest

import madl
from madl import Memory, Pool
from madl.pool.tracking import Wish, wanted
from madl.stacks import Stack


class Failing:
    """A listener that breaks its promise, as Ctrl-C makes the best one do."""

    def allocated(
        self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
    ) -> int:
        return 1

    def freed(self, allocation_id: int) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def pool() -> Pool:
    return Pool("sim")


@pytest.fixture
def watched(pool: Pool) -> Memory:
    with wanted(Wish(listener=Failing())):
        return pool.allocate(100)


def test_the_block_goes_back_all_the_same(pool: Pool, watched: Memory) -> None:
    with pytest.raises(KeyboardInterrupt):
        watched.free()

    assert watched.is_freed
    assert pool.stats().live_nbytes == 0
    pool.check()


def test_and_is_freed_once(pool: Pool, watched: Memory) -> None:
    with pytest.raises(KeyboardInterrupt):
        watched.free()

    with pytest.raises(madl.FreedMemoryError):
        watched.free()
    assert pool.stats().free_count == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handle_that_is_dropped_likewise(pool: Pool) -> None:
    with wanted(Wish(listener=Failing())):
        memory = pool.allocate(100)

    del memory

    assert pool.stats().live_nbytes == 0
    pool.check()
