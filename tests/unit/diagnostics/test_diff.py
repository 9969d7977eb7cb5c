"""What grew between two traces, or two snapshots."""

import pytest

from madl import Pool, PoolSnapshot
from madl.diagnostics.diff import (
    Change,
    contents_of_snapshot,
    contents_of_trace,
    diff,
)
from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.trace import Trace


def trace(*sizes: int, tag: str | None = None, kept: int = 0) -> Trace:
    builder = TraceBuilder()
    ids = [builder.allocate(nbytes, tag=tag) for nbytes in sizes]
    for one in ids[kept:]:
        builder.free(one)
    return builder.finish("t")


def snapshot(*sizes: int) -> PoolSnapshot:
    with Pool("sim") as pool:
        held = [pool.allocate(nbytes, tag="a") for nbytes in sizes]
        pool.allocate(512).free()
        taken = pool.snapshot()
        held.clear()
    return taken


def test_traces_are_compared_at_their_peaks() -> None:
    before = contents_of_trace(trace(100, 100, tag="old"))
    after = contents_of_trace(trace(100, 3000, kept=1))

    found = diff(before, after)

    assert found.totals == (
        Change("peak_live_nbytes", 200, 3100),
        Change("live_at_end_nbytes", 0, 100),
        Change("allocations", 2, 2),
        Change("frees", 2, 1),
    )
    assert found.tags == (
        Change("(no tag)", 0, 3100, 0, 2),
        Change("old", 200, 0, 2, 0),
    )
    assert found.sizes == (
        Change("4096", 0, 3000, 0, 1),
        Change("128", 200, 100, 2, 1),
    )


def test_snapshots_are_compared_as_they_are() -> None:
    found = diff(
        contents_of_snapshot(snapshot(1000)),
        contents_of_snapshot(snapshot(1000, 1000, 70_000)),
    )

    assert [change.name for change in found.totals] == [
        "live_nbytes",
        "committed_nbytes",
        "cached_nbytes",
        "live_blocks",
    ]
    assert found.totals[0] == Change("live_nbytes", 1000, 72_000)
    assert found.totals[3].growth == 2
    assert found.tags == (Change("a", 1000, 72_000, 1, 3),)
    assert found.sizes == (
        Change("131072", 0, 70_000, 0, 1),
        Change("1024", 1000, 2000, 1, 2),
    )


def test_what_is_equal_is_left_out() -> None:
    found = diff(contents_of_trace(trace(5)), contents_of_trace(trace(5)))

    assert (found.tags, found.sizes) == ((), ())


@pytest.mark.parametrize(
    ("nbytes", "name"), [(0, "1"), (1, "1"), (2, "2"), (1024, "1024"), (1025, "2048")]
)
def test_a_class_is_the_least_power_of_two_with_room(nbytes: int, name: str) -> None:
    contents = contents_of_snapshot(snapshot(nbytes)) if nbytes else None
    if contents is None:
        builder = TraceBuilder()
        builder.allocate(0)
        builder.allocate(1 << 20)
        contents = contents_of_trace(builder.finish("zero"))

    assert name in map(str, contents.by_size)


def test_a_trace_and_a_snapshot_cannot_be_compared() -> None:
    with pytest.raises(
        ValueError,
        match=r"^a trace and a snapshot cannot be compared; two of a kind can$",
    ):
        diff(contents_of_trace(trace(5)), contents_of_snapshot(snapshot(5)))
