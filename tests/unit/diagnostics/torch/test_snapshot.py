"""Snapshots of PyTorch's allocator: what is read, and what is refused."""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from madl import FileFormatError
from madl.diagnostics.torch import snapshot as torch_snapshot
from madl.diagnostics.torch.models import AllocatorSettings
from madl.diagnostics.torch.snapshot import is_pickle, read_torch_snapshot
from tests.torch_dumps import BASE, MIB, Dump, fragmented


def refusal(content: object) -> str:
    with pytest.raises(FileFormatError) as caught:
        read_torch_snapshot(pickle.dumps(content, 4))
    return str(caught.value).removeprefix("<bytes>: ")


def changed(change: Callable[[Any], object]) -> str:
    content = fragmented().content()
    change(content)
    return refusal(content)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_segments_blocks_and_events_are_read(protocol: int) -> None:
    snapshot = read_torch_snapshot(fragmented().pickled(protocol))

    first, second = snapshot.segments
    assert (first.address, first.nbytes, first.device) == (BASE, 32 * MIB, 0)
    assert second.address == BASE + 64 * MIB
    live, free = first.blocks
    assert (live.nbytes, live.requested_nbytes) == (18 * MIB, 18 * MIB)
    assert live.is_live
    assert (free.nbytes, free.is_live, free.place) == (14 * MIB, False, None)
    actions = [event.action for event in snapshot.events[0]]
    begun = ["segment_alloc", "alloc"] * 2
    ended = ["free_requested", "free_completed"] * 2
    assert actions == [*begun, *ended, "alloc", "alloc", "oom"]
    assert snapshot.events[0][-1].device_free_nbytes == 18 * MIB


def test_a_place_is_the_innermost_line_of_python_that_is_not_of_torch() -> None:
    snapshot = read_torch_snapshot(fragmented().pickled())

    assert snapshot.segments[0].blocks[0].place == "model.py:20 (step)"


def test_without_such_a_line_it_is_the_innermost_function() -> None:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    dump.alloc(0, 100)
    del dump.events[-1]["frames"][2]

    assert read_torch_snapshot(dump.pickled()).events[0][-1].place == "at::empty(long)"


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ({"filename": "train.py", "line": (1 << 64) - 1, "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "line": (1 << 32) - 1, "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "line": -1, "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "line": 0, "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "line": None, "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "line": "7", "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "name": "f"}, "train.py (f)"),
        ({"filename": "train.py", "line": 7}, "train.py:7"),
        ({"filename": "train.py", "line": 7, "name": 3}, "train.py:7"),
        ({"filename": 3, "line": 7, "name": "f"}, "f"),
        ({"filename": None, "line": 7, "name": None}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_a_frame_lacks_is_left_out_and_nothing_else(
    frame: object, place: str | None
) -> None:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    dump.alloc(0, 100)
    content = dump.content()
    content["device_traces"][0][-1]["frames"] = [frame]
    content["segments"][0]["blocks"][0]["frames"] = [frame]

    snapshot = read_torch_snapshot(pickle.dumps(content, 4))

    assert snapshot.events[0][-1].place == place
    assert snapshot.segments[0].blocks[0].place == place


def test_a_frame_that_is_none_hides_no_other() -> None:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    dump.alloc(0, 100)
    dump.events[-1]["frames"] = [None, "at", *dump.events[-1]["frames"]]

    assert (
        read_torch_snapshot(dump.pickled()).events[0][-1].place == "train.py:1 (step)"
    )


@pytest.mark.parametrize("frames", [None, 3, "train.py", {}, (), ("train.py",), []])
def test_a_stack_that_is_no_list_is_none(frames: object) -> None:
    dump = Dump()
    dump.segment(0, 2 * MIB)
    dump.alloc(0, 100)
    dump.events[-1]["frames"] = frames

    assert read_torch_snapshot(dump.pickled()).events[0][-1].place is None


def test_a_list_of_segments_is_a_snapshot_without_events() -> None:
    content = fragmented().content()

    read = read_torch_snapshot(pickle.dumps(content["segments"], 4))

    whole = read_torch_snapshot(pickle.dumps(content, 4))
    assert read == whole._replace(events=())


def test_blocks_of_old_versions_have_sizes_and_places_in_their_history() -> None:
    content = fragmented().content()
    new = read_torch_snapshot(pickle.dumps(content, 4))
    for segment in content["segments"]:
        for block in segment["blocks"]:
            frames, size = block.pop("frames"), block.pop("requested_size")
            used = {"addr": block.pop("address"), "real_size": size, "frames": frames}
            older = {"addr": 0, "real_size": 7, "frames": []}
            block["history"] = [used, older]
    segments = content["segments"]

    assert read_torch_snapshot(pickle.dumps(segments, 4)).segments == new.segments


def test_an_old_block_without_history_has_its_size() -> None:
    content = fragmented().content()
    block = content["segments"][0]["blocks"][0]
    del block["requested_size"]
    block["history"] = []

    read = read_torch_snapshot(pickle.dumps(content, 4))

    assert read.segments[0].blocks[0].requested_nbytes == 18 * MIB
    assert read.segments[0].blocks[0].place == "model.py:20 (step)"


def test_a_file_may_be_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "run.pickle.gz"
    path.write_bytes(gzip.compress(fragmented().pickled()))

    assert is_pickle(path)
    assert read_torch_snapshot(path).name == "run"


def test_a_trace_is_no_pickle() -> None:
    assert not is_pickle(b"# madl-trace v1\n")
    assert not is_pickle(b"")


def test_blocks_without_an_address_follow_each_other() -> None:
    content = fragmented().content()
    for block in content["segments"][0]["blocks"]:
        del block["address"]

    snapshot = read_torch_snapshot(pickle.dumps(content, 4))

    addresses = [block.address for block in snapshot.segments[0].blocks]
    assert addresses == [BASE, BASE + 18 * MIB]


def test_the_settings_are_those_of_the_process() -> None:
    dump = fragmented()
    dump.settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4",
        "max_split_size": 128 * MIB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": True,
    }

    settings = read_torch_snapshot(dump.pickled()).settings

    assert settings.as_text() == (
        "expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:4,"
        "garbage_collection_threshold:0.5"
    )


def test_a_snapshot_without_settings_has_the_defaults() -> None:
    content = fragmented().content()
    del content["allocator_settings"]

    read = read_torch_snapshot(pickle.dumps(content, 4))

    assert read.settings == AllocatorSettings()


@pytest.mark.parametrize("most", [-1, 0, (1 << 64) - 1, None])
def test_what_pytorch_shows_for_no_limit_is_none(most: int | None) -> None:
    content = fragmented().content()
    said = {"max_split_size": most, "garbage_collection_threshold": 0.0}
    content["allocator_settings"] = said

    read = read_torch_snapshot(pickle.dumps(content, 4))

    assert read.settings == AllocatorSettings()


def test_unknown_actions_are_skipped() -> None:
    dump = fragmented()
    dump.events.append({"action": "snapshot", "size": "of no interest"})

    assert len(read_torch_snapshot(dump.pickled()).events[0]) == 11


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (1, "the snapshot must be a dict, got 1"),
        ({}, "segments must be a list, got nothing"),
        ({"segments": [3]}, "segments[0] must be a dict, got 3"),
        ({"segments": [], "device_traces": {}}, "device_traces must be a list"),
        ({"segments": [], "device_traces": [3]}, "device_traces[0] must be a list"),
        ({"segments": "x" * 99}, f"segments must be a list, got '{'x' * 39}..."),
    ],
)
def test_what_is_no_snapshot_is_refused(content: object, reason: str) -> None:
    assert refusal(content).startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda c: c["segments"][0].update(address=-1),
            "segments[0].address must lie in 0..",
        ),
        (
            lambda c: c["segments"][0].update(total_size=1 << 60),
            "segments[0].total_size must lie in 0..",
        ),
        (
            lambda c: c["segments"][1]["blocks"][0].update(size=True),
            "segments[1].blocks[0].size must be an integer, got True",
        ),
        (
            lambda c: c["segments"][0]["blocks"][1].update(size=33 * MIB),
            "segments[0].blocks[1].size must lie in its segment, got 34603008",
        ),
        (
            lambda c: c["device_traces"][0][1].pop("addr"),
            "device_traces[0][1].addr must be an integer, got nothing",
        ),
        (
            lambda c: c["device_traces"][0][1].update(action=[]),
            "device_traces[0][1].action must be text, got a list",
        ),
        (
            lambda c: c["segments"][0]["blocks"][0].update(requested_size="1"),
            "segments[0].blocks[0].requested_size must be an integer, got '1'",
        ),
        (
            lambda c: c["allocator_settings"].update(
                PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:x"
            ),
            "allocator_settings.PYTORCH_CUDA_ALLOC_CONF max_split_size_mb must be",
        ),
        (
            lambda c: c["allocator_settings"].update(
                garbage_collection_threshold=1e308
            ),
            "allocator_settings.garbage_collection_threshold must lie between 0 and 1, "
            "got 1e+308",
        ),
        (
            lambda c: c["allocator_settings"].update(
                garbage_collection_threshold=float("nan")
            ),
            "allocator_settings.garbage_collection_threshold must lie between 0 and 1",
        ),
        (
            lambda c: c["allocator_settings"].update(max_split_size=1 << 65),
            "allocator_settings.max_split_size must lie in -",
        ),
        (
            lambda c: c["allocator_settings"].update(max_split_size="128"),
            "allocator_settings.max_split_size must be an integer, got '128'",
        ),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(
    change: Callable[[Any], object], reason: str
) -> None:
    assert changed(change).startswith(reason)


def test_one_list_in_many_places_does_not_multiply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_snapshot, "RECORD_LIMIT", 100)
    events = fragmented().events * 6

    assert refusal({"segments": [], "device_traces": [events, events]}) == (
        "the snapshot has more than 100 events"
    )
