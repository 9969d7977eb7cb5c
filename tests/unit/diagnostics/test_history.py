"""The history of a trace is what its replay does, at every moment."""

from array import array
from dataclasses import replace

import pytest

from madl import OutOfMemoryError, Pool
from madl.diagnostics import example_path, open_trace
from madl.diagnostics.history import History
from madl.diagnostics.replay import replay
from madl.diagnostics.runs.from_trace import history_of_trace
from madl.diagnostics.runs.map import address_map, map_snapshot
from madl.diagnostics.traces.trace import Trace
from madl.stacks import Line
from tests.traces import trace

MIB = 1 << 20


SMALL = trace(
    "m,first",
    f"a,0,{3 * MIB},0,weights",
    f"a,1,{MIB}",
    "m,second",
    "f,0",
    "a,2,100,0,weights",
    "a,3,0",
    "f,1",
)


@pytest.fixture(scope="module")
def example() -> tuple[Trace, History]:
    loaded = open_trace(example_path("gpt2-train"))
    return loaded, history_of_trace(loaded)


def test_live_bytes_are_those_of_the_trace() -> None:
    history = history_of_trace(SMALL)

    expected = [0, 3 * MIB, 4 * MIB, MIB, MIB + 100, MIB + 100, 100]
    assert history.live_nbytes.tolist() == expected
    assert history.peak_moment == 2


def test_holders_are_tags() -> None:
    history = history_of_trace(SMALL)

    assert history.held_at(2) == {"weights": (3 * MIB, 1), None: (MIB, 1)}
    assert history.held_at(5) == {None: (MIB, 2), "weights": (100, 1)}


def test_markers_are_kept() -> None:
    assert history_of_trace(SMALL).markers == ((0, "first"), (2, "second"))


def test_the_peaks_are_those_of_a_replay(example: tuple[Trace, History]) -> None:
    loaded, history = example
    result = replay(loaded, Pool("sim"))

    assert history.peak_live_nbytes == result.peak_live_nbytes
    assert history.peak_committed_nbytes == result.peak_committed_nbytes
    assert history.peak_moment == loaded.peak_position


def test_blocks_lie_where_a_replay_puts_them(example: tuple[Trace, History]) -> None:
    loaded, history = example
    at_peak = replay(loaded, Pool("sim")).at_peak
    replayed = sorted(
        (block.nbytes, block.capacity_nbytes)
        for arena in at_peak.arenas
        for block in arena.blocks
        if block.state == "live"
    )
    rows = history.live_at(history.peak_moment)

    found = zip(
        history.blocks.nbytes[rows].tolist(),
        history.blocks.capacity[rows].tolist(),
        strict=True,
    )

    assert sorted(one for one in found if one[0]) == [one for one in replayed if one[0]]


def test_free_space_is_that_of_the_pool(example: tuple[Trace, History]) -> None:
    loaded, history = example
    stats = replay(loaded, Pool("sim")).stats

    free = history.free_at(history.last_moment)

    assert free.largest_nbytes == stats.largest_free_nbytes
    assert free.fragmentation_ratio == stats.fragmentation_ratio


def test_no_two_live_blocks_overlap_and_all_are_committed(
    example: tuple[Trace, History],
) -> None:
    _, history = example

    for moment in range(0, history.last_moment + 1, 997):
        rows = history.live_at(moment) & (history.blocks.capacity > 0)
        capacity = int(history.blocks.capacity[rows].sum())
        free = history.free_at(moment).nbytes
        assert capacity + free == history.committed_nbytes[moment]


def test_the_map_is_all_that_was_ever_committed_end_to_end(
    example: tuple[Trace, History],
) -> None:
    _, history = example

    (arena,) = map_snapshot(history, history.peak_moment).arenas

    assert arena.nbytes == address_map(history).span
    live = sum(block.capacity_nbytes for block in arena.blocks)
    committed = sum(nbytes for _, nbytes in arena.committed_runs)
    assert committed == history.committed_nbytes[history.peak_moment]
    assert live + history.free_at(history.peak_moment).nbytes == committed
    ends = [block.offset + block.capacity_nbytes for block in arena.blocks]
    assert all(a <= b.offset for a, b in zip(ends, arena.blocks[1:], strict=False))


def test_a_trace_of_nothing_has_one_moment() -> None:
    history = history_of_trace(trace())

    assert (history.last_moment, history.peak_live_nbytes) == (0, 0)
    assert history.free_at(0).fragmentation_ratio == 0
    assert map_snapshot(history, 0).arenas[0].blocks == ()


def test_a_limit_is_kept_and_shown() -> None:
    assert history_of_trace(SMALL, limit="8 MiB").limit_nbytes == 8 * MIB
    with pytest.raises(OutOfMemoryError):
        history_of_trace(SMALL, limit="2 MiB")


def test_progress_adds_up_to_all_events(example: tuple[Trace, History]) -> None:
    done = list[int]()

    history_of_trace(example[0], on_progress=done.append)

    assert sum(done) == len(example[0])


def test_stacks_say_where_blocks_were_asked_for() -> None:
    stacks = ((), (Line("a.py", 1, "step"), Line("b.py", 2, "main")))
    untagged = trace("a,0,100", "a,1,200")
    recorded = replace(untagged, stack_of=array("q", [1, 0]), stacks=stacks)

    history = history_of_trace(recorded)

    assert history.places == (None, "a.py:1")
    assert history.held_at(2) == {None: (200, 1), "a.py:1": (100, 1)}
