"""The past that a PyTorch snapshot tells of."""

import pickle
from random import Random

import pytest

from madl import FileFormatError
from madl.diagnostics.histories import open_history, past_of
from madl.diagnostics.history import FreeSpace, Moment
from madl.diagnostics.torch.past import TorchPast
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from tests.torch_dumps import BASE, MIB, Dump, Record, fragmented


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
    told = past(fragmented())

    (failure,) = told.failures
    assert told.trace.operations[failure.moment - 1] == failure.allocation
    assert failure == (7, 4, 24 * MIB, 18 * MIB, "train.py:9 (step)")


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


def with_devices(*dumps: Dump) -> bytes:
    contents = [dump.content() for dump in dumps]
    for number, content in enumerate(contents):
        for segment in content["segments"]:
            segment["device"] = number
    return pickle.dumps(
        {
            "segments": [one for content in contents for one in content["segments"]],
            "device_traces": [content["device_traces"][0] for content in contents],
        },
        4,
    )


def busy() -> Dump:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    for _ in range(50):
        dump.alloc(0, 100)
        dump.free(0)
    return dump


def test_the_device_that_ran_out_of_memory_is_chosen_before_a_busier_one() -> None:
    data = with_devices(busy(), fragmented(), busy())

    assert open_history(data).device == "cuda:1"
    assert open_history(data).notes == ()
    assert open_history(data, device=2).notes == (
        "cuda:1 ran out of memory. Try: --device 1",
    )


def test_of_those_that_ran_out_of_memory_the_others_are_named() -> None:
    first = busy()
    first.fail(24 * MIB, 0)

    history = open_history(with_devices(first, busy(), fragmented()))

    assert history.device == "cuda:0"
    assert history.notes == ("cuda:2 ran out of memory. Try: --device 2",)


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


def test_what_is_released_for_a_request_that_fails_all_the_same_is_counted_once() -> (
    None
):
    dump = Dump()
    for start in (0, 64 * MIB):
        dump.segment(start, 32 * MIB)
        dump.alloc(start, 18 * MIB)
    dump.free(64 * MIB)
    dump.segment_free(64 * MIB)  # of which the device says that it is free
    dump.fail(40 * MIB, 35 * MIB)

    history = past(dump).history

    assert history.limit_nbytes == 67 * MIB
    assert history.peak_committed_nbytes == 64 * MIB
    (marker,) = history.markers
    assert history.committed_nbytes[marker.moment] == 32 * MIB
    assert history.free_at(marker.moment) == FreeSpace(14 * MIB, 14 * MIB)


class _Device:
    """A GPU of some size whose segments come and go at random, and which fails."""

    def __init__(self, seed: int) -> None:
        self.total = 4096 * MIB + seed
        self.dump = Dump()
        self._random = Random(seed)
        self._cached: dict[int, int] = {}
        """Segments without a block; an expandable one is grown at its end."""
        self._expandable = 1 << 40
        self._grown: list[int] = []
        self.taken = 0
        self.taken_at_failures: list[int] = []
        self._next = 0

    def run(self) -> None:
        for _ in range(4):
            for _ in range(self._random.randrange(3)):
                self._work()
            for _ in range(self._random.randrange(4)):
                self._change()
            self.taken_at_failures.append(self.taken)
            self.dump.fail(1 << 40, self.total - self.taken)
        for _ in range(self._random.randrange(3)):
            self._change()
        for _ in range(self._random.randrange(2)):
            self._work()

    def _work(self) -> None:
        start = self._take()
        self.dump.alloc(start, self._random.randrange(1, 2 * MIB))
        if self._random.random() < 0.5:
            self.dump.free(start)
        else:
            del self._cached[start]

    def _change(self) -> None:
        change = self._random.randrange(4)
        if change == 0:
            self._take()
        elif change == 1 and self._cached:
            start = self._random.choice(sorted(self._cached))
            self.taken -= self._cached.pop(start)
            self.dump.segment_free(start)
        elif change == 2:
            nbytes = 2 * MIB * self._random.randrange(1, 5)
            self.dump.map(self._expandable + sum(self._grown), nbytes)
            self._grown.append(nbytes)
            self.taken += nbytes
        elif change == 3 and self._grown:
            nbytes = self._grown.pop()
            self.dump.unmap(self._expandable + sum(self._grown), nbytes)
            self.taken -= nbytes

    def _take(self) -> int:
        nbytes = 2 * MIB * self._random.randrange(1, 20)
        start, self._next = self._next, self._next + 64 * MIB
        self.dump.segment(start, nbytes)
        self._cached[start] = nbytes
        self.taken += nbytes
        return start


@pytest.mark.parametrize("lost", [0, 1, 7])
@pytest.mark.parametrize("seed", range(40))
def test_reserved_bytes_and_capacity_are_exact_at_every_failure(
    seed: int, lost: int
) -> None:
    device = _Device(seed)
    device.run()
    device.dump.forget(lost)

    told = past(device.dump)

    failures = told.failures
    expected = device.taken_at_failures[-len(failures) :]
    reserved = [int(told.history.committed_nbytes[one.moment]) for one in failures]
    assert reserved == expected
    assert told.history.limit_nbytes == device.total
    assert told.history.committed_nbytes[-1] == device.taken
    moments = [one.moment for one in failures]
    labels = [mark.moment for mark in told.history.markers if "out" in mark.label]
    assert labels == moments


def test_a_device_of_a_trace_is_an_error() -> None:
    with pytest.raises(FileFormatError, match="this is a trace, which is of no GPU"):
        open_history(b"# madl-trace v1\n", device=0)


def test_requests_whose_sum_leaves_64_bits_are_refused() -> None:
    dump = Dump()
    for number in range(65):
        dump.alloc(number << 20, (1 << 56) - 1)

    with pytest.raises(FileFormatError, match="all requests together must be below"):
        past(dump)


def moved(content: Record, by: int, stream: int = 0) -> bytes:
    for segment in content["segments"]:
        for entry in (segment, *segment["blocks"]):
            entry["address"] += by
        segment["stream"] = stream
    for event in content["device_traces"][0]:
        event["stream"] = stream
        if "addr" in event:
            event["addr"] += by
    return pickle.dumps(content, 4)


@pytest.mark.parametrize(
    "start", [0, (1 << 62) - BASE - MIB, 1 << 62, 0xFF00_FFFF_0000_0000 - BASE]
)
def test_addresses_may_use_all_of_64_bits(start: int) -> None:
    whole = past(fragmented())

    data = moved(fragmented().content(), start, stream=(1 << 64) - 4096)
    told = past_of(read_torch_snapshot(data))

    assert told.history.live_nbytes.tolist() == whole.history.live_nbytes.tolist()
    assert told.history.limit_nbytes == whole.history.limit_nbytes
    assert told.history.free_at(7) == whole.history.free_at(7)
    assert told.history.has_addresses is (start == 0)
    expected = (
        () if start == 0 else (f"Addresses are counted from {BASE + start:#x} on.",)
    )
    assert told.history.notes == expected
    assert told.trace.stream_of is not None
    assert set(told.trace.stream_of) == {-4096}


def test_addresses_too_far_apart_are_refused() -> None:
    content = fragmented().content()
    content["segments"][1]["address"] = content["segments"][1]["blocks"][0][
        "address"
    ] = 1 << 63
    content["segments"][1]["blocks"].pop()

    with pytest.raises(FileFormatError, match="addresses must lie within"):
        past_of(read_torch_snapshot(pickle.dumps(content, 4)))
