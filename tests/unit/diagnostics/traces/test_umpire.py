"""Traces made of Umpire's replay logs, of both generations."""

import json

import pytest

from madl.diagnostics import Allocate, Free, open_trace
from madl.errors import FileFormatError


def old(event: str, payload: dict[str, object], result: object = None) -> bytes:
    record = {"kind": "replay", "uid": 1, "timestamp": 2, "event": event}
    record["payload"] = payload
    if result is not None:
        record["result"] = result
    return b"{ " + json.dumps(record).encode()[1:] + b"\n"


def new(name: str, texts: dict[str, str], size: int | None = None) -> bytes:
    record: dict[str, object] = {"category": "operation", "name": name}
    record["string_args"] = texts
    record["numeric_args"] = {} if size is None else {"size": size}
    record["tags"] = {"allocator_name": "pool", "replay": "true"}
    return json.dumps(record).encode() + b"\n"


OLD = (
    b"# a comment\n"
    + old("version", {"major": 0})
    + old("makeMemoryResource", {"name": "HOST"}, "0x10")
    + old("makeAllocator", {"allocator_name": "pool"})
    + old("makeAllocator", {"allocator_name": "pool"}, {"allocator_ref": "0x20"})
    + old("allocate", {"allocator_ref": "0x20", "size": 0})
    + old("allocate", {"allocator_ref": "0x20", "size": 0}, {"memory_ptr": "0xa0"})
    + b"the program prints this\n"
    + old("allocate", {"allocator_ref": "0x20", "size": 134}, {"memory_ptr": "0xa0"})
    + old("allocate", {"allocator_ref": "0x10", "size": 7}, {"memory_ptr": "0xb0"})
    + old("deallocate", {"allocator_ref": "0x20", "memory_ptr": "0xa0"})
)
NEW = (
    new("make_allocator", {"allocator_ref": "0x20"})
    + new("allocate", {"allocator_ref": "0x20", "pointer": "0xa0"}, 64)
    + new("coalesce", {"allocator_ref": "0x20"})
    + new("deallocate", {"allocator_ref": "0x20", "pointer": "0xa0"})
)


def test_results_become_events_and_allocators_become_tags() -> None:
    assert list(open_trace(OLD).events()) == [
        Allocate(0, 0, tag="pool"),
        Allocate(1, 134, tag="pool"),
        Allocate(2, 7),
        Free(1),
    ]


def test_the_events_of_later_releases_are_read_too() -> None:
    assert list(open_trace(NEW).events()) == [Allocate(0, 64, tag="pool"), Free(0)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{ "kind": "replay", \n', 'it is no JSON: \'{ "kind": "replay", \''),
        (
            old("allocate", {"allocator_ref": "0x2", "size": -1}, {"memory_ptr": "1"}),
            "\"size\" must be from 0 and below 72057594037927936, got '-1'",
        ),
        (
            old("deallocate", {"memory_ptr": 7}),
            "\"memory_ptr\" must be an address, got '7'",
        ),
        (
            new("deallocate", {"pointer": "here"}),
            "\"pointer\" must be an address as in 0x7f00, got 'here'",
        ),
    ],
)
def test_a_broken_event_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        open_trace(OLD + line)

    assert str(caught.value) == f"<bytes>:12: {reason}"


def test_the_log_of_a_process_that_was_killed_ends_in_a_line_that_is_left_out() -> None:
    for cut in range(2, len(NEW.splitlines()[-1])):
        trace = open_trace(NEW[:-cut])

        assert list(trace.events()) == [Allocate(0, 64, tag="pool")]
        assert all("is cut off and left out" in note for note in trace.notes)


def test_other_json_is_no_trace() -> None:
    with pytest.raises(FileFormatError, match="the first line must be"):
        open_trace(b'{"a": 1}\n')
