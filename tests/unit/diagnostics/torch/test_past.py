"""The past that a PyTorch snapshot tells of."""

import pytest

from madl import FileFormatError
from madl.diagnostics.histories import open_history, past_of
from madl.diagnostics.history import FreeSpace, Moment
from madl.diagnostics.torch.past import TorchPast
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from tests.torch_dumps import MIB, Dump, fragmented


def past(dump: Dump) -> TorchPast:
    return past_of(read_torch_snapshot(dump.pickled()))


def test_live_and_reserved_bytes_are_those_of_every_moment() -> None:
    told = past(fragmented())

    live = (told.history.live_nbytes // MIB).tolist()
    assert live == [0, 32, 64, 32, 0, 18, 36, 36, 36]
    reserved = (told.history.committed_nbytes // MIB).tolist()
    assert reserved == [0, 32, 64, 64, 64, 64, 64, 64, 64]


def test_the_trace_has_the_request_that_failed() -> None:
    trace = past(fragmented()).trace

    assert trace.peak_live_nbytes == 64 * MIB
    assert trace.operations[-2:].tolist() == [4, ~4]
    assert trace.markers == ((6, "out of memory"),)


def test_a_failure_says_what_was_asked_and_left() -> None:
    (failure,) = past(fragmented()).failures

    assert failure == (6, 24 * MIB, 18 * MIB, "train.py:9 (step)")


def test_free_space_is_in_pieces_at_the_failure() -> None:
    history = past(fragmented()).history

    assert history.free_at(6) == FreeSpace(28 * MIB, 14 * MIB)
    assert history.free_at(6).fragmentation_ratio == 0.5


def test_holders_are_lines_of_the_program() -> None:
    history = past(fragmented()).history

    assert history.held_at(6) == {"model.py:20 (step)": (36 * MIB, 2)}
    assert history.places == history.holders


@pytest.mark.parametrize("lost", range(1, 8))
def test_the_end_is_the_same_however_much_the_ring_buffer_lost(lost: int) -> None:
    dump = fragmented()
    whole = past(dump).history
    dump.forget(lost)

    told = past(dump).history

    for moment in (-1, -2, -3):
        assert told.live_nbytes[moment] == whole.live_nbytes[moment]
        assert told.committed_nbytes[moment] == whole.committed_nbytes[moment]
    assert told.free_at(told.last_moment) == whole.free_at(whole.last_moment)


def test_what_is_older_than_the_history_comes_first_and_is_said() -> None:
    dump = fragmented()
    dump.forget(4)  # all but the two frees, and what comes after

    told = past(dump)

    assert told.trace.nbytes_of[0] == 32 * MIB
    assert told.history.markers[0] == Moment(2, "the history begins")
    (note,) = told.history.notes
    assert note.startswith("2 blocks (64.0 MiB) are older than the history")


def test_a_snapshot_without_history_shows_the_end() -> None:
    dump = fragmented()
    dump.forget(len(dump.events))

    told = past(dump)

    assert not told.has_events
    assert told.history.peak_live_nbytes == 36 * MIB
    assert told.history.notes == (
        "There is no history: only what was there at the end is shown.",
    )


def test_memory_that_was_given_back_is_there_before() -> None:
    dump = Dump()
    dump.segment(0, 20 * MIB)
    dump.segment(32 * MIB, 2 * MIB)
    dump.alloc(32 * MIB, 100)
    dump.segment_free(0)
    dump.forget(2)

    told = past(dump).history

    assert (told.committed_nbytes // MIB).tolist() == [22, 22, 2]


def test_a_range_that_is_mapped_at_the_end_of_another_grows_it() -> None:
    dump = Dump()
    dump.segment(0, 20 * MIB, "segment_map")
    dump.segment(20 * MIB, 40 * MIB, "segment_map")
    dump.alloc(0, 20 * MIB)

    told = past(dump).history

    assert told.peak_committed_nbytes == 60 * MIB
    assert told.free_at(1) == FreeSpace(40 * MIB, 40 * MIB)


def test_events_that_contradict_others_are_skipped_and_counted() -> None:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    dump.alloc(0, 100)
    dump.events.append(dump.events[-1])
    dump.free(0)
    dump.events.append(dump.events[-1])

    told = past(dump)

    assert told.history.notes == ("2 events contradict others, and were skipped.",)
    assert told.history.live_nbytes[-1] == 0


def test_the_device_with_the_most_events_is_chosen() -> None:
    dump = fragmented()
    dump.device = 2

    assert past(dump).history.device == "cuda:2"


def test_a_device_that_the_snapshot_does_not_know_is_an_error() -> None:
    with pytest.raises(FileFormatError) as caught:
        open_history(fragmented().pickled(), device=3)

    assert str(caught.value) == (
        "<bytes>: the snapshot says nothing of device 3; it has 0"
    )


def test_an_empty_snapshot_is_an_error() -> None:
    with pytest.raises(FileFormatError, match=r"says nothing of any device$"):
        past(Dump())


def test_a_tag_of_the_trace_is_on_one_line() -> None:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    dump.alloc(0, 100, "a\nb.py:3")

    assert past(dump).trace.tags == (None, "a b.py:3 (step)")


def test_the_limit_of_a_snapshot_is_what_the_device_had() -> None:
    data = fragmented().pickled()

    assert open_history(data).limit_nbytes == 82 * MIB
    assert open_history(data, limit="1 GiB").limit_nbytes == 1 << 30


def test_a_device_of_a_trace_is_an_error() -> None:
    with pytest.raises(FileFormatError, match="this is a trace, which is of no GPU"):
        open_history(b"# madl-trace v1\n", device=0)


def test_requests_whose_sum_leaves_64_bits_are_refused() -> None:
    dump = Dump()
    for number in range(65):
        dump.alloc(number << 20, (1 << 56) - 1)

    with pytest.raises(FileFormatError, match="all requests together must be below"):
        past(dump)
