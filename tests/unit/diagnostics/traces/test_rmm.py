"""Traces made of RMM's CSV logs."""

import gzip
from collections.abc import Callable

import pytest

from madl.diagnostics import Allocate, Free, Marker, open_trace
from madl.errors import FileFormatError

HEAD = b"Thread,Time,Action,Pointer,Size,Stream\n"
LOG = HEAD + (
    b"2342727,15:47:02.841961,allocate,0x10012400000,1048576,0\n"
    b"2342727,15:47:02.841977,allocate,0x10012500000,256,0x7f8a38001020\n"
    b"2342728,15:47:02.842000,free,0x10012400000,1048576,0\n"
    b"2342728,15:47:02.842100,allocate failure,(nil),4096,0x7f8a38001020\n"
    b"2342728,15:47:02.842200,allocate,0x10012400000,512,0x7f8a38001030\n"
)


@pytest.mark.parametrize(
    "content", [LOG, gzip.compress(LOG, mtime=0), LOG.replace(b"\n", b"\r\n")]
)
def test_rows_become_events_and_streams_are_numbered(content: bytes) -> None:
    assert list(open_trace(content).events()) == [
        Allocate(0, 1048576),
        Allocate(1, 256, stream=1),
        Free(0),
        Marker("out of memory: 4096 bytes"),
        Allocate(2, 512, stream=2),
    ]


def test_a_free_of_what_the_log_does_not_know_is_left_out_and_said() -> None:
    trace = open_trace(HEAD + b"1,0,free,0x10,8,0\n1,0,allocate,0x10,8,0\n")

    assert list(trace.events()) == [Allocate(0, 8)]
    assert trace.notes == ("frees of what was allocated before are left out: 1",)


def test_a_free_ends_the_latest_of_one_address() -> None:
    rows = b"1,0,allocate,(nil),0,0\n1,0,allocate,0x0,0,0\n" + 2 * b"1,0,free,0x0,0,0\n"

    assert list(open_trace(HEAD + rows).operations) == [0, 1, ~1, ~0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,2,3", "a row must be Thread,Time,Action,Pointer,Size,Stream, got '1,2,3'"),
        (
            "1,0,resize,0x1,8,0",
            "Action must be allocate, allocate failure or free, got 'resize'",
        ),
        (
            "1,0,allocate,0xzz,8,0",
            "Pointer must be an address as in 0x7f00, got '0xzz'",
        ),
        (
            "1,0,allocate,0x12345678901234567,8,0",
            "Pointer must be an address as in 0x7f00, got '0x12345678901234567'",
        ),
        (
            f"1,0,allocate,0x1,8,{41 * 'x'}",
            f"Stream has at most 40 letters, got '{40 * 'x'}'...",
        ),
        ("1,0,allocate,0x1,-8,0", "Size must not be negative, got '-8'"),
        (
            f"1,0,allocate,0x1,{1 << 56},0",
            "Size must be below 72057594037927936, got '72057594037927936'",
        ),
    ],
)
def test_a_broken_row_is_named(row: str, reason: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        open_trace(LOG + row.encode() + b"\n")

    assert str(caught.value) == f"<bytes>:7: {reason}"


@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_log_may_end_anywhere(eol: bytes, pack: Callable[[bytes], bytes]) -> None:
    log = LOG.replace(b"\n", eol)
    whole = list(open_trace(log).events())
    last = log.removesuffix(eol).rindex(eol) + len(eol)

    for end in range(last, len(log)):
        trace = open_trace(pack(log[:end]))

        row = log[last:end]
        if row.count(b",") < 5:
            assert list(trace.events()) == whole[:-1]
            assert len(trace.notes) == (1 if row else 0)
        else:  # its stream may be cut; one block has the number of its turn
            assert list(trace.events())[:-1] == whole[:-1]
            assert trace.nbytes_of[-1] == 512
            assert trace.notes == ()


def test_what_is_left_out_of_a_cut_log_is_said() -> None:
    trace = open_trace(LOG + b"2342728,15:47:02.8,allocate,0x100")

    assert trace.notes == (
        "the last row is cut off and left out: '2342728,15:47:02.8,allocate,0x100'",
    )


def test_a_last_row_that_is_whole_but_wrong_is_refused() -> None:
    with pytest.raises(FileFormatError, match=":7: Action must be allocate"):
        open_trace(LOG + b"1,0,resize,0x1,8,0")
