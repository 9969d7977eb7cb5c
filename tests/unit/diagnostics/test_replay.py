"""A trace through a pool."""

import pytest

from madl import MissingCapabilityError, OutOfMemoryError, Pool
from madl.diagnostics.replay import TOUCH_BYTE, replay
from tests.traces import trace

MIB = 1 << 20


SMALL = trace(
    f"a,0,{3 * MIB}", "a,1,100", "m,step", "f,0", f"a,2,{MIB}", "a,3,0", "f,1"
)


def test_the_figures_are_those_of_the_trace() -> None:
    result = replay(SMALL, Pool("sim"))

    assert result.peak_live_nbytes == 3 * MIB + 100 == SMALL.peak_live_nbytes
    assert result.peak_committed_nbytes >= result.peak_live_nbytes
    assert result.committed_over_live == (
        result.peak_committed_nbytes / result.peak_live_nbytes
    )
    assert result.ns_per_event == pytest.approx(result.seconds * 1e9 / len(SMALL))
    assert result.stats.allocation_count == 4


def test_what_the_trace_leaves_live_is_freed_after_the_figures_are_taken() -> None:
    pool = Pool("sim")

    result = replay(SMALL, pool)

    assert result.stats.live_nbytes == MIB
    assert pool.stats().live_nbytes == 0


def test_the_peak_is_shown_as_it_was() -> None:
    result = replay(SMALL, Pool("sim"))

    live = [
        block.nbytes
        for arena in result.at_peak.arenas
        for block in arena.blocks
        if block.state == "live"
    ]
    assert sorted(live) == [100, 3 * MIB]


def test_an_empty_trace_has_a_ratio_of_one() -> None:
    result = replay(trace(), Pool("sim"))

    assert (result.committed_over_live, result.ns_per_event) == (1.0, 0.0)


def test_progress_adds_up_to_all_events() -> None:
    done: list[int] = []
    long = trace(*(f"a,{i},{i}" for i in range(1234)))

    replay(long, Pool("sim"), on_progress=done.append)

    assert sum(done) == len(long)
    assert 50 < len(done) < 150


def test_tags_of_the_trace_are_those_of_the_blocks() -> None:
    tagged = trace("a,0,100,0,weights", "a,1,5", "a,2,30,0,weights", "f,0")

    result = replay(tagged, Pool("sim"))

    assert result.stats.tags["weights"].live_high_water_nbytes == 130


def test_touch_writes_every_byte() -> None:
    pool = Pool("cpu")
    replay(trace("a,0,5000"), pool, touch=True)

    assert pool.allocate(5000).tobytes() == bytes([TOUCH_BYTE]) * 5000


def test_touch_needs_a_device_that_the_cpu_can_reach() -> None:
    with pytest.raises(MissingCapabilityError):
        replay(SMALL, Pool("sim"), touch=True)


def test_a_trace_that_does_not_fit_leaves_nothing_live() -> None:
    pool = Pool("sim", limit=2 * MIB)

    with pytest.raises(OutOfMemoryError) as caught:
        replay(trace(f"a,0,{MIB}", f"a,1,{2 * MIB}"), pool)

    assert caught.value.requested == 2 * MIB
    assert pool.stats().live_nbytes == 0


def test_a_pool_with_live_memory_is_refused() -> None:
    pool = Pool("sim")
    memory = pool.allocate(8)

    with pytest.raises(ValueError, match=r"^replay") as caught:
        replay(SMALL, pool)

    assert memory.nbytes == 8
    assert str(caught.value) == (
        "replay needs a pool without live memory, got <madl.Pool on sim: 8 bytes live>"
    )


def test_a_tag_that_no_pool_would_take_is_replaced_by_what_can_be_shown() -> None:
    with Pool("sim") as pool:
        result = replay(trace("a,0,10,0,t\x02", "a,1,5,0,t\x85"), pool)

    assert set(result.stats.tags) == {"t?"}
