"""Where memory comes from: reservations, pages, segments, and how they go back."""

import pytest

from madl import Pool
from madl.backends.sim import SimBackend
from madl.errors import BackendCallError, OutOfMemoryError
from madl.sizes import ADDRESS_SPACE_NBYTES
from tests.fakes import GRANULARITY, Failure, FakeBackend, Fault
from tests.faulty import FaultyCalls

KIB = 1024
MIB = 1024 * KIB
PAGE = 16 * KIB


def test_four_times_the_memory_is_reserved_once() -> None:
    backend = FakeBackend(total_nbytes=MIB)
    pool = Pool(backend)

    held = [pool.allocate(10 * PAGE) for _ in range(6)]

    assert [item.nbytes for item in backend.reservations.values()] == [4 * MIB]
    assert len({memory.address for memory in held}) == 6


def test_a_refused_reservation_is_halved_and_once_more_for_others() -> None:
    backend = FakeBackend(fault=Fault(1, Failure.REFUSED))
    pool = Pool(backend)

    pool.allocate(100)

    assert [item.nbytes for item in backend.reservations.values()] == [MIB]


def test_a_reservation_is_never_smaller_than_the_request() -> None:
    backend = FakeBackend(fault=Fault(1, Failure.REFUSED, lasts=True))
    pool = Pool(backend)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(3 * PAGE)

    # 4 MiB, 2 MiB, ... 64 KiB, then the request itself; twice, with a collection of
    # garbage in between.
    assert backend.calls == ["reserve"] * 2 * 8
    assert "fake_reserve failed with 1 (as the test wanted)" in str(caught.value)


def test_large_blocks_have_an_arena_of_their_own() -> None:
    backend = FakeBackend(total_nbytes=8 * MIB)
    pool = Pool(backend)

    small, large = pool.allocate(MIB), pool.allocate(MIB + 1)

    assert len(backend.reservations) == 2
    assert backend.committed_nbytes == 2 * MIB + PAGE
    assert abs(small.address - large.address) > 4 * MIB


def test_both_arenas_share_one_limit() -> None:
    backend = FakeBackend(total_nbytes=8 * MIB)
    pool = Pool(backend, limit=4 * MIB)
    held = [pool.allocate(MIB) for _ in range(3)]

    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB + 512)
    del held[1]

    assert pool.allocate(MIB + 512).nbytes == MIB + 512
    assert backend.committed_nbytes <= 4 * MIB
    pool.check()


def test_pages_are_committed_at_the_tail_just_as_needed() -> None:
    backend = FakeBackend()
    pool = Pool(backend)

    committed = []
    held = []
    for nbytes in (100, PAGE, 3 * PAGE - 1024, 1024):
        held.append(pool.allocate(nbytes))
        committed.append(backend.committed_nbytes // PAGE)

    assert committed == [1, 2, 4, 5]


def test_the_high_water_mark_of_committed_bytes_stays() -> None:
    pool = Pool(FakeBackend())
    pool.allocate(10 * PAGE).free()

    pool.trim()

    stats = pool.stats()
    assert (stats.committed_nbytes, stats.committed_high_water_nbytes) == (0, 10 * PAGE)


@pytest.mark.parametrize("remaps", [True, False])
def test_recycling_takes_idle_pages_before_new_ones(remaps: bool) -> None:
    backend = FakeBackend(remaps=remaps)
    pool = Pool(backend, limit="1 MiB")
    low, high = pool.allocate(4 * PAGE), pool.allocate(100)
    low.free()

    memory = pool.allocate(6 * PAGE)

    assert backend.committed_nbytes == 7 * PAGE
    assert pool.stats().recycled_pages == 4
    assert backend.is_committed_at(memory.address, memory.capacity)
    assert backend.is_committed_at(high.address, high.capacity)


def test_without_recycling_new_pages_are_taken() -> None:
    backend = FakeBackend()
    pool = Pool(backend, recycle=False)
    low, high = pool.allocate(4 * PAGE), pool.allocate(100)
    low.free()

    memory = pool.allocate(6 * PAGE)

    assert backend.committed_nbytes == 11 * PAGE
    assert pool.stats().recycled_pages == 0
    assert memory.address > high.address


@pytest.mark.parametrize("failing", ["decommit", "commit"])
def test_a_recycling_that_fails_changes_nothing(failing: str) -> None:
    backend = FakeBackend(remaps=False)
    pool = Pool(backend, limit=8 * PAGE, page_size=PAGE)
    low, high = pool.allocate(4 * PAGE), pool.allocate(100)
    low.free()
    # One call commits three new pages, the next takes the four idle ones away.
    backend.fail(Fault(2 if failing == "decommit" else 3))

    with pytest.raises(BackendCallError):
        pool.allocate(7 * PAGE)

    assert backend.committed_nbytes == pool.stats().committed_nbytes == 5 * PAGE
    pool.check()
    assert pool.allocate(7 * PAGE).nbytes == 7 * PAGE
    assert backend.is_committed_at(high.address, high.capacity)


@pytest.mark.parametrize("alignment", [None, 4 * KIB])
def test_at_the_limit_the_committed_end_of_a_free_block_is_used(
    alignment: int | None,
) -> None:
    pool = Pool(FakeBackend(), limit=3 * PAGE, page_size=PAGE)
    below = pool.allocate(PAGE + 8 * KIB)
    beside = pool.allocate(8 * KIB)  # the rest of its second page
    below.free()
    pool.trim()
    held = pool.allocate(2 * PAGE)

    found = pool.allocate(2 * KIB, alignment=alignment)

    assert beside.address - found.address == 8 * KIB
    assert held.address - beside.address == 8 * KIB


def test_a_request_over_the_limit_takes_nothing_from_the_device() -> None:
    backend = FakeBackend()
    pool = Pool(backend, limit=5 * PAGE, page_size=PAGE)
    blocks = [pool.allocate(PAGE) for _ in range(4)]
    blocks[0].free()
    blocks[2].free()
    pool.trim()
    large = pool.allocate(2 * PAGE)  # above them, where it fits
    blocks[1].free()
    # The lowest three pages: one is missing, one is there, and one is missing again.
    before = len(backend.calls)

    with pytest.raises(OutOfMemoryError):
        pool.allocate(3 * PAGE)

    assert "commit" not in backend.calls[before:]
    large.free()


def test_a_page_that_nobody_gives_back_is_not_counted_as_committed() -> None:
    backend = FakeBackend(remaps=False)
    pool = Pool(backend, limit=8 * PAGE, page_size=PAGE)
    low, high = pool.allocate(4 * PAGE), pool.allocate(100)
    low.free()
    # The pages are taken away, and from then on the device refuses everything.
    backend.fail(Fault(3, Failure.REFUSED, lasts=True))

    with pytest.raises((OutOfMemoryError, BackendCallError)):
        pool.allocate(7 * PAGE)

    assert pool.stats().committed_nbytes == backend.committed_nbytes
    pool.check()
    backend.recover()
    memory = pool.allocate(4 * PAGE)
    assert backend.is_committed_at(memory.address, memory.capacity)
    assert backend.is_committed_at(high.address, high.capacity)


def test_a_reservation_whose_pages_are_refused_is_released() -> None:
    backend = FakeBackend(total_nbytes=2 * PAGE)
    pool = Pool(backend)

    with pytest.raises(OutOfMemoryError):
        pool.allocate(3 * PAGE)

    assert backend.reservations == {}
    assert pool.stats().reserved_nbytes == 0


@pytest.mark.parametrize("failure", [Failure.BROKEN, Failure.INTERRUPTED])
def test_a_reservation_whose_pages_cannot_be_had_is_released(failure: Failure) -> None:
    backend = FakeBackend()
    pool = Pool(backend)
    backend.fail(Fault(2, failure))

    with pytest.raises((BackendCallError, KeyboardInterrupt)):
        pool.allocate(100)

    assert backend.reservations == {}
    assert pool.stats().reserved_nbytes == 0
    assert pool.allocate(100).nbytes == 100


def test_segments_are_multiples_of_two_mebibytes() -> None:
    backend = FakeBackend(total_nbytes=32 * MIB, commits=False)
    pool = Pool(backend)

    held = [pool.allocate(MIB), pool.allocate(512 * KIB), pool.allocate(3 * MIB)]

    assert [item.nbytes // MIB for item in backend.reservations.values()] == [2, 4]
    assert backend.committed_nbytes == pool.stats().reserved_nbytes == 6 * MIB
    assert len(held) == 3


def test_empty_segments_are_merged_on_a_miss() -> None:
    backend = FakeBackend(total_nbytes=32 * MIB, commits=False)
    pool = Pool(backend)
    for memory in [pool.allocate(2 * MIB) for _ in range(4)]:
        memory.free()

    pool.allocate(3 * MIB)

    assert [item.nbytes // MIB for item in backend.reservations.values()] == [8]


def test_where_a_merged_segment_is_refused_the_request_alone_is_taken() -> None:
    backend = FakeBackend(total_nbytes=32 * MIB, commits=False)
    pool = Pool(backend)
    for memory in [pool.allocate(2 * MIB) for _ in range(4)]:
        memory.free()
    backend.fail(Fault(5, Failure.REFUSED))  # after four releases

    pool.allocate(3 * MIB)

    assert [item.nbytes // MIB for item in backend.reservations.values()] == [4]


def test_a_small_limit_is_met_to_the_granule_by_segments() -> None:
    backend = FakeBackend(commits=False)
    pool = Pool(backend, limit=10 * GRANULARITY)

    held = [pool.allocate(3 * GRANULARITY) for _ in range(3)]

    assert backend.committed_nbytes == 9 * GRANULARITY
    with pytest.raises(OutOfMemoryError):
        pool.allocate(2 * GRANULARITY)
    assert len(held) == 3


def test_a_failed_release_of_a_segment_can_be_tried_again() -> None:
    backend = FakeBackend(commits=False)
    pool = Pool(backend, limit=512 * KIB)
    pool.allocate(100).free()
    backend.fail(Fault(1))

    with pytest.raises(BackendCallError):
        pool.trim()

    assert pool.stats().committed_nbytes == backend.committed_nbytes > 0
    pool.trim()
    assert backend.reservations == {}


@pytest.mark.parametrize("has_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("commits", [False, True], ids=["segment", "pages"])
def test_nothing_is_placed_in_what_an_interrupted_release_may_have_given_back(
    commits: bool, has_effect: bool
) -> None:
    backend = FakeBackend(commits=commits)
    pool = Pool(backend, limit=512 * KIB)
    pool.allocate(100).free()
    # Pages go back first.
    backend.fail(Fault(1 + commits, Failure.INTERRUPTED, has_effect=has_effect))

    with pytest.raises(KeyboardInterrupt):
        pool.trim()

    pool.check()
    memory = pool.allocate(100)
    assert backend.is_committed_at(memory.address, memory.capacity)
    memory.free()
    pool.trim()
    assert backend.reservations == {}
    assert pool.stats().reserved_nbytes == pool.stats().committed_nbytes == 0
    pool.check()


def test_an_interrupted_release_of_a_block_apart_is_not_tried_for_ever() -> None:
    backend = FakeBackend()
    pool = Pool(backend, pooling=False)
    pool.allocate(100).free()
    backend.fail(Fault(1, Failure.INTERRUPTED, has_effect=True))
    with pytest.raises(KeyboardInterrupt):
        pool.trim()

    pool.trim()

    assert pool.stats().reserved_nbytes == pool.stats().committed_nbytes == 0
    pool.check()


@pytest.mark.parametrize("failure", [Failure.BROKEN, Failure.INTERRUPTED])
def test_a_reservation_that_is_taken_once_more_and_not_released_is_tried_again(
    failure: Failure,
) -> None:
    # Half is taken, then given back for a quarter; that fails.
    backend = FakeBackend()
    calls = FaultyCalls(backend)
    pool = Pool(backend)
    backend.fault = Fault(1, Failure.REFUSED)
    calls.arm(Fault(4, failure))  # after a question and two reservations

    with pytest.raises((BackendCallError, KeyboardInterrupt)):
        pool.allocate(100)

    assert calls.struck == ["release"]

    pool.check()
    pool.trim()
    assert backend.reservations == {}


def test_a_failed_release_of_a_block_apart_can_be_tried_again() -> None:
    backend = FakeBackend()
    pool = Pool(backend, pooling=False)
    pool.allocate(100).free()
    backend.fail(Fault(1))

    with pytest.raises(BackendCallError):
        pool.allocate(200)

    pool.check()
    pool.trim()
    assert backend.reservations == {}


def test_a_block_apart_whose_pages_are_refused_leaves_nothing_behind() -> None:
    backend = FakeBackend()
    pool = Pool(backend, pooling=False)
    backend.fail(Fault(2))

    with pytest.raises(BackendCallError):
        pool.allocate(100)

    assert backend.reservations == {}
    assert pool.stats().reserved_nbytes == 0


def test_a_trace_of_any_size_runs_on_the_simulated_device() -> None:
    backend = SimBackend()
    pool = Pool(backend)
    nbytes = min(20 << 30, ADDRESS_SPACE_NBYTES // 2)

    held = [pool.allocate(nbytes) for _ in range(3)]

    assert backend.committed_nbytes == 3 * nbytes
    assert len(held) == 3
