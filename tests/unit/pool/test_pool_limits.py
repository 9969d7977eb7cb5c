"""The limit, and what is tried before a request fails."""

import sys
from collections.abc import Callable

import pytest

from madl import Pool
from madl.errors import OutOfMemoryError
from madl.sizes import ADDRESS_SPACE_NBYTES
from tests.fakes import FakeBackend

KIB = 1024
PAGE = 16 * KIB
LIMIT = 16 * PAGE


def make_pool(
    *, recycle: bool = True, pooling: bool = True
) -> tuple[Pool, FakeBackend]:
    backend = FakeBackend()
    return Pool(backend, limit=LIMIT, recycle=recycle, pooling=pooling), backend


def test_a_limit_can_be_used_to_the_byte() -> None:
    pool, backend = make_pool()

    pool.allocate(LIMIT)

    assert backend.committed_nbytes == LIMIT


def test_a_request_over_the_limit_fails_at_once() -> None:
    pool, backend = make_pool()
    asked: list[int] = []
    pool.on_out_of_memory(asked.append)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(LIMIT + 1)

    assert str(caught.value) == (
        "fake: cannot place 256.0 KiB (262145 B)\n"
        "  rounded     to 256.5 KiB\n"
        "  committed   0 B, limit 256.0 KiB\n"
        "  live        0 B in 0 blocks, and 0 B padding\n"
        "  free        0 B, largest 0 B, in bins 0 B, fragmentation 0.00\n"
        "  device      1.0 MiB, 1.0 MiB unused\n"
        "Try: a limit of at least 272.0 KiB, or a smaller request."
    )
    assert caught.value.report.capacity_nbytes == LIMIT + 512
    assert (backend.calls, asked) == ([], [])


def test_what_does_not_fit_any_more_fails_with_a_report() -> None:
    pool, _ = make_pool()
    held = pool.allocate(LIMIT - PAGE + 100)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(PAGE)

    assert str(caught.value) == (
        "fake: cannot place 16.0 KiB\n"
        "  committed   256.0 KiB, limit 256.0 KiB\n"
        "  live        240.1 KiB in 1 block, and 412 B padding\n"
        "  free        15.5 KiB, largest 15.5 KiB, in bins 0 B, fragmentation 0.00\n"
        "  device      1.0 MiB, 768.0 KiB unused\n"
        "  by tag      (no tag): 240.1 KiB in 1\n"
        "  tried       0 B from flush\n"
        "              0 B from garbage collection\n"
        "Try: free some memory, or a limit of 272.0 KiB."
    )
    report = caught.value.report
    assert (report.live_nbytes, report.padding_nbytes) == (held.nbytes, 412)
    assert report.tried == (("flush", 0), ("garbage collection", 0))


def test_a_failure_changes_nothing_and_the_pool_stays_usable() -> None:
    pool, backend = make_pool()
    held = pool.allocate(LIMIT - PAGE)
    before = backend.committed_nbytes, pool.stats().live_nbytes

    with pytest.raises(OutOfMemoryError):
        pool.allocate(2 * PAGE)

    assert (backend.committed_nbytes, pool.stats().live_nbytes) == before
    pool.check()
    assert pool.allocate(PAGE).address != held.address


def test_enough_in_pieces_says_so() -> None:
    pool, _ = make_pool()
    held = [pool.allocate(PAGE // 2) for _ in range(32)]
    del held[::2]

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(PAGE)

    assert str(caught.value).endswith(
        "Try: enough is free, but in parts of pages: page_size='8.0 KiB' lets the "
        "pool\n     use it."
    )


def test_at_the_limit_binned_blocks_are_joined() -> None:
    pool, _ = make_pool()
    for memory in [pool.allocate(PAGE) for _ in range(16)]:
        memory.free()

    assert pool.allocate(LIMIT).nbytes == LIMIT


@pytest.mark.parametrize("remaps", [True, False])
def test_at_the_limit_idle_pages_are_recycled(remaps: bool) -> None:
    pool = Pool(FakeBackend(remaps=remaps), limit=LIMIT)
    low, high = pool.allocate(6 * PAGE), pool.allocate(PAGE)
    low.free()

    memory = pool.allocate(14 * PAGE)

    assert (memory.nbytes, high.nbytes) == (14 * PAGE, PAGE)
    assert pool.stats().recycled_pages == 6
    pool.check()


def test_without_recycling_idle_pages_are_given_back_at_the_limit() -> None:
    pool, backend = make_pool(recycle=False)
    low, high = pool.allocate(6 * PAGE), pool.allocate(PAGE)
    low.free()

    memory = pool.allocate(14 * PAGE)

    assert (memory.nbytes, high.nbytes) == (14 * PAGE, PAGE)
    assert "remap" not in backend.calls
    assert pool.stats().recycled_pages == 0
    pool.check()


def test_at_the_limit_a_block_goes_where_no_page_is_missing() -> None:
    pool, backend = make_pool()
    low, wall, high = (pool.allocate(n * PAGE // 2) for n in (4, 9, 2))
    low.free()
    pool.trim()
    top = pool.allocate(LIMIT - wall.nbytes - high.nbytes)
    place = high.address  # on halves of two pages, so freeing it makes none idle
    high.free()

    memory = pool.allocate(PAGE - 512)

    assert memory.address == place
    assert (backend.committed_nbytes, top.is_freed) == (LIMIT, False)
    pool.check()


def test_reclaimers_run_in_order_until_there_is_room() -> None:
    pool, _ = make_pool()
    held = {"first": pool.allocate(PAGE), "second": pool.allocate(8 * PAGE)}
    ran: list[str] = []

    def give_up(name: str) -> Callable[[int], None]:
        def reclaim(nbytes: int) -> None:
            ran.append(f"{name} {nbytes}")
            held.pop(name, None)

        return reclaim

    pool.on_out_of_memory(give_up("third"), priority=9)
    pool.on_out_of_memory(give_up("second"), priority=2)
    pool.on_out_of_memory(give_up("first"), priority=1)

    pool.allocate(10 * PAGE)

    assert ran == [f"first {10 * PAGE}", f"second {10 * PAGE}"]


def test_a_removed_reclaimer_does_not_run() -> None:
    pool, _ = make_pool()
    asked: list[int] = []
    remove = pool.on_out_of_memory(asked.append)
    remove()
    held = pool.allocate(LIMIT)

    with pytest.raises(OutOfMemoryError):
        pool.allocate(held.nbytes)

    assert asked == []


def test_the_report_says_what_each_step_gave_back() -> None:
    pool, _ = make_pool()
    held = [pool.allocate(8 * PAGE), pool.allocate(8 * PAGE)]

    def drop_one(nbytes: int) -> None:
        held.pop()

    pool.on_out_of_memory(drop_one)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(LIMIT)

    flush, (name, gave_back), collection = caught.value.report.tried
    assert name.endswith("drop_one")
    assert gave_back == 8 * PAGE
    assert flush == ("flush", 0)
    assert collection == ("garbage collection", 0)


def test_the_error_of_a_reclaimer_becomes_the_context() -> None:
    pool, _ = make_pool()
    held = pool.allocate(LIMIT)
    mistake = KeyError("no such cache")

    def fail(nbytes: int) -> None:
        raise mistake

    pool.on_out_of_memory(fail)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(held.nbytes)

    assert caught.value.__context__ is mistake


def test_garbage_in_cycles_is_collected_before_a_request_fails() -> None:
    pool, _ = make_pool()
    cycle: list[object] = [pool.allocate(LIMIT)]
    cycle.append(cycle)
    del cycle

    assert pool.allocate(LIMIT).nbytes == LIMIT


def test_a_device_that_is_full_is_named_in_the_report() -> None:
    pool = Pool(FakeBackend(total_nbytes=4 * PAGE))
    held = pool.allocate(3 * PAGE)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(2 * PAGE)

    assert str(caught.value) == (
        "fake: cannot place 32.0 KiB\n"
        "  committed   48.0 KiB\n"
        "  live        48.0 KiB in 1 block, and 0 B padding\n"
        "  free        0 B, largest 0 B, in bins 0 B, fragmentation 0.00\n"
        "  device      64.0 KiB, 16.0 KiB unused\n"
        "  it said     fake_take failed with 2 (the device is full)\n"
        "  by tag      (no tag): 48.0 KiB in 1\n"
        "  tried       0 B from flush\n"
        "              0 B from garbage collection\n"
        "Try: free some memory: pools of this process have 48.0 KiB of the 64.0 KiB "
        "of\n     fake."
    )
    assert held.nbytes == 3 * PAGE


def test_the_limit_bounds_blocks_of_their_own_too() -> None:
    pool, backend = make_pool(pooling=False)
    held = [pool.allocate(4 * PAGE) for _ in range(4)]

    with pytest.raises(OutOfMemoryError):
        pool.allocate(PAGE)

    assert backend.committed_nbytes == LIMIT
    held.pop().free()
    assert pool.allocate(PAGE).nbytes == PAGE


@pytest.mark.parametrize("nbytes", [1, 512, 5000, 37_684, 300 * 1024, 37 * 1024**2 + 1])
def test_the_limit_that_is_advised_is_enough(nbytes: int) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        Pool("sim", limit=nbytes - 1).allocate(nbytes)

    with Pool("sim", limit=caught.value.report.least_limit_nbytes) as pool:
        pool.allocate(nbytes)


def test_a_request_over_the_limit_leaves_the_bins_as_they_are() -> None:
    with Pool("sim", limit=16 << 20) as pool:
        pool.allocate("1.5 MiB").free()
        before = pool.stats()

        for nbytes in (sys.maxsize // 2, sys.maxsize, ADDRESS_SPACE_NBYTES - 1):
            with pytest.raises(OutOfMemoryError):
                pool.allocate(nbytes)

        assert pool.stats() == before


def test_a_reclaimer_may_close_the_pool() -> None:
    pool = Pool("sim", limit="4 MiB")
    held = [pool.allocate("3 MiB")]

    def give_up(_: int) -> None:
        held.clear()
        pool.close()

    pool.on_out_of_memory(give_up)
    with pytest.raises(ValueError, match="a closed pool of sim allocates nothing"):
        pool.allocate("2 MiB")

    assert pool.stats().committed_nbytes == 0
