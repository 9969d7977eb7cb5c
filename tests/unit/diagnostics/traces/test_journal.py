"""A journal is read up to where it is whole; what breaks the format is refused."""

import struct
from pathlib import Path

import pytest

from madl.diagnostics import Allocate, Free, Marker, open_trace
from madl.diagnostics.traces import builder
from madl.diagnostics.traces.journal import (
    BYTE_ORDER_MARK,
    MAGIC,
    JournalWriter,
    Kind,
    Text,
    record,
    text_records,
)
from madl.errors import FileFormatError
from madl.stacks import Line

RING = 128


def journal(*records: bytes, end: int | None = None, order: str = "=") -> bytes:
    """Return a journal whose ring has room for eight records."""
    written = b"".join(records)
    end = len(written) if end is None else end
    base = max(len(written) - 1, 0) // RING * RING
    head = MAGIC + struct.pack(f"{order}QQQ", BYTE_ORDER_MARK, RING, end)
    ring = written[base:].ljust(RING, b"\0")
    return head.ljust(64, b"\0") + ring + written[:base]


def allocate(key: int, nbytes: int) -> bytes:
    return record(nbytes, key, Kind.ALLOCATE)


def free(key: int) -> bytes:
    return record(0, key, Kind.FREE)


def note(events: int, rest: str = "") -> str:
    counted = "1 event was" if events == 1 else f"{events} events were"
    return (
        f"a journal, of a recording that has not ended: {counted} written until then"
        f"{rest}"
    )


def test_keys_become_ids() -> None:
    trace = open_trace(
        journal(allocate(70, 8), allocate(80, 9), free(70), allocate(70, 10), free(80))
    )

    assert list(trace.operations) == [0, 1, ~0, 2, ~1]
    assert list(trace.nbytes_of) == [8, 9, 10]
    assert trace.notes == (note(5),)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17, 50])
def test_records_come_from_the_file_and_then_from_the_ring(count: int) -> None:
    content = journal(*(allocate(n, n) for n in range(count)))

    assert list(open_trace(content).nbytes_of) == list(range(count))


def test_a_full_ring_that_was_appended_is_not_read_from_the_ring() -> None:
    records = [allocate(n, n) for n in range(16)]
    whole = journal(*records)
    overwritten = whole[:64] + allocate(99, 99) + whole[80:] + b"".join(records[8:])

    assert list(open_trace(overwritten).nbytes_of) == list(range(16))


def test_the_other_byte_order_is_read() -> None:
    content = journal(struct.pack(">QQ", 8, 1 << 4 | Kind.ALLOCATE), order=">")
    other = journal(struct.pack("<QQ", 8, 1 << 4 | Kind.ALLOCATE), order="<")

    assert (
        list(open_trace(content).nbytes_of) == [8] == list(open_trace(other).nbytes_of)
    )


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 100])
def test_a_file_that_was_cut_short_is_read_up_to_there(cut: int) -> None:
    content = journal(*(allocate(n, n) for n in range(50)))[:-cut]

    trace = open_trace(content)

    assert list(trace.nbytes_of) == list(range(48 - -(-cut // 16)))
    assert trace.notes == (note(len(trace), "; what comes after is torn"),)


@pytest.mark.parametrize("lost", [16, 32, 48])
def test_a_text_that_is_not_whole_is_left_out(lost: int) -> None:
    text = text_records(Text.MARKER, 0, 40 * "x")
    whole = allocate(1, 8) + text
    content = journal(whole, end=len(whole) - lost)

    trace = open_trace(content)

    assert list(trace.events()) == [Allocate(0, 8)]
    assert trace.notes == (note(1, "; what comes after is torn" * (lost < 64)),)


def test_what_a_writer_wrote_is_read(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "run.trace.gz", {"name": "mine"})
    stack = (Line("é.py", 3, "f"), Line("main.py", 12, "<module>"))
    writer.allocate(1, 100, -3, "weights/é", stack)
    writer.mark("step 1")
    writer.allocate(2, 50, 0, None, ())
    writer.free(1)
    writer.allocate(1, 7, 0, "weights/é", ())
    writer.close()

    trace = open_trace(writer.path)
    assert (trace.name, trace.headers) == ("mine", {"name": "mine"})
    assert list(trace.events()) == [
        Allocate(0, 100, stream=-3, tag="weights/é", stack=stack),
        Marker("step 1"),
        Allocate(1, 50),
        Free(0),
        Allocate(2, 7, tag="weights/é"),
    ]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (record(0, 0, Kind(2)) + struct.pack("=QQ", 0, 9), "record 2: its kind is 9"),
        (allocate(1, 1 << 56), "record 1: nbytes must be below"),
        (record(0, 3, Kind.CONTEXT), "record 1: tag 3 has not been named"),
        (record(0, 3 << 30, Kind.CONTEXT), "record 1: stack 3 has not been described"),
        (record(1 << 63, 0, Kind.CONTEXT), "record 1: stream must be above -2**63"),
        (record(1 << 40, 1, Kind.TEXT), "record 1: a text has at most 65536 bytes"),
        (text_records(Text.STACK, 1, "[3]"), "record 1: a stack must be a list of"),
        (text_records(Text.MARKER, 0, "a\nb"), "record 1: a text must be on one line"),
        (record(1, 9, Kind.TEXT) + b"x" * 16, "record 1: it is a text of kind 9"),
        (
            record(1, 4, Kind.TEXT) + b"\xff" + bytes(15),
            "record 1: a text is not UTF-8",
        ),
    ],
)
def test_a_record_that_breaks_the_format_is_named(records: bytes, reason: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        open_trace(journal(records))

    assert str(caught.value).startswith(f"<bytes>: {reason}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (MAGIC, "the journal does not say in which byte order it is"),
        (MAGIC + bytes(48), "the journal does not say in which byte order it is"),
        (
            MAGIC + struct.pack("=QQQ", BYTE_ORDER_MARK, 0, 0) + bytes(24),
            "a ring cannot have 0 bytes",
        ),
        (
            MAGIC + struct.pack("=QQQ", BYTE_ORDER_MARK, 1 << 30, 0) + bytes(24),
            "a ring cannot have 1073741824 bytes",
        ),
        (
            MAGIC + struct.pack("=QQQ", BYTE_ORDER_MARK, 128, 8) + bytes(24),
            "records cannot have 8 bytes in all",
        ),
    ],
)
def test_a_head_that_cannot_be_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        open_trace(content)

    assert str(caught.value) == f"<bytes>: {reason}"


def test_how_many_blocks_may_be_live_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builder, "LIVE_LIMIT", 1)

    assert len(open_trace(journal(allocate(1, 8), free(1), allocate(2, 8)))) == 3
    with pytest.raises(FileFormatError, match="more than 1 blocks are live at once"):
        open_trace(journal(allocate(1, 8), allocate(2, 8)))
