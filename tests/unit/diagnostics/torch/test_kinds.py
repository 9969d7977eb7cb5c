"""Histories that leave out some kinds of events."""

import pickle
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from madl.diagnostics.histories import past_of
from madl.diagnostics.torch.past import TorchPast
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from madl.diagnostics.whatif_report import what_if
from tests.torch_dumps import MIB, Dump

BLOCKS = ("alloc", "free_requested", "free_completed")
SEGMENTS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")


def program(seed: int) -> Dump:
    """Return a program that uses addresses again, and runs out of memory."""
    random, dump = Random(seed), Dump()
    dump.segment(0, 64 * MIB)
    live = set[int]()
    for step in range(60):
        start = 4 * MIB * random.randrange(16)
        if start in live:
            dump.free(start)
            live.remove(start)
        else:
            dump.alloc(start, random.randrange(1, 4 * MIB))
            live.add(start)
        if step % 20 == 7:
            dump.segment(128 * MIB, 20 * MIB)
            dump.map(1 << 40, 20 * MIB)
        if step % 20 == 11:
            dump.segment_free(128 * MIB)
            dump.unmap(1 << 40, 20 * MIB)
    dump.fail(64 * MIB, 5 * MIB)
    return dump


def pickled(dump: Dump, skipped: Iterable[str] = ()) -> bytes:
    content: dict[str, Any] = dump.content()
    kept = [event for event in dump.events if event["action"] not in skipped]
    return pickle.dumps({**content, "device_traces": [kept]}, 4)


def past(dump: Dump, skipped: Iterable[str] = ()) -> TorchPast:
    return past_of(read_torch_snapshot(pickled(dump, skipped)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("skipped", BLOCKS[1:])
def test_one_of_the_two_events_of_a_free_is_enough(seed: int, skipped: str) -> None:
    dump = program(seed)
    whole, told = past(dump), past(dump, [skipped])

    assert told.history.live_nbytes.tolist() == whole.history.live_nbytes.tolist()
    assert told.history.limit_nbytes == whole.history.limit_nbytes
    assert told.trace.operations == whole.trace.operations


def test_that_frees_are_not_complete_is_said() -> None:
    (note,) = past(program(0), ["free_completed"]).history.notes

    assert note == (
        "The history has no free_completed events: a block ends where its free is "
        "requested, though another stream may use it for longer."
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("skipped", "named"),
    [
        (["alloc"], "no alloc events"),
        (["alloc", "free_completed"], "no alloc events"),
        (["free_requested", "free_completed"], "no free_completed events"),
        (["segment_alloc"], "no segment_alloc events"),
        (["segment_free"], "no segment_free events"),
        (["segment_map"], "no segment_map events"),
        (["segment_unmap"], "no segment_unmap events"),
        (["alloc", "segment_free"], "no alloc and no segment_free events"),
    ],
)
def test_without_a_kind_that_the_others_need_only_the_end_is_shown(
    seed: int, skipped: list[str], named: str
) -> None:
    dump = program(seed)
    whole = past(dump).history

    data = pickled(dump, skipped)
    told = past_of(read_torch_snapshot(data))

    assert not told.has_events
    assert told.history.peak_live_nbytes == whole.live_nbytes[-1]
    assert told.history.peak_committed_nbytes == whole.committed_nbytes[-1]
    assert told.history.notes == (
        f"The history has {named}, which the others need: only what was there at the "
        "end is shown. Try: record without skip_actions",
    )
    found = what_if(data)
    assert found.export is None
    assert found.advice.startswith("There is no history to replay")


def test_blocks_outside_what_is_reserved_need_its_events() -> None:
    dump = program(0)
    dump.segment(1 << 30, 4 * MIB)
    dump.alloc(1 << 30, 100)
    dump.free(1 << 30)
    dump.segment_free(1 << 30)

    (note,) = past(dump, SEGMENTS).history.notes

    assert note.startswith("The history has no segment_alloc events")


def test_segments_that_stay_need_no_events() -> None:
    dump = Dump()
    dump.segment(0, 20 * MIB)
    dump.alloc(0, 100)
    dump.free(0)
    dump.fail(40 * MIB, 3 * MIB)

    history = past(dump, SEGMENTS).history

    assert history.notes == ()
    assert history.limit_nbytes == 23 * MIB


@pytest.mark.parametrize("lost", range(1, 190, 7))
@pytest.mark.parametrize("seed", range(3))
def test_a_start_that_was_overwritten_is_no_kind_that_is_missing(
    seed: int, lost: int
) -> None:
    dump = program(seed)
    whole = past(dump).history
    dump.forget(min(lost, len(dump.events) - 1))

    told = past(dump)

    assert told.has_events
    assert told.history.limit_nbytes == whole.limit_nbytes
    assert not any("has no" in note for note in told.history.notes)


def test_a_block_that_waits_for_another_stream_is_live_at_the_end() -> None:
    dump = Dump()
    dump.segment(0, 20 * MIB)
    dump.alloc(0, 3 * MIB)
    dump.free(0)
    dump.alloc(0, 5 * MIB)
    dump.free(0)
    dump.alloc(0, 7 * MIB)
    dump.events.append(dump.events[-1] | {"action": "free_requested"})

    live = past(dump, ["free_completed"]).history.live_nbytes

    assert (live // MIB).tolist() == [0, 3, 0, 5, 0, 7]
