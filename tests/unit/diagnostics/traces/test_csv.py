"""Traces made of MiniMalloc and idealloc rows."""

import gzip

import pytest

from madl.diagnostics import Allocate, Free, open_trace
from madl.diagnostics.traces import csv as trace_csv
from madl.errors import FileFormatError

HEAD = b"id,lower,upper,size\n"


def test_events_come_in_order_of_time() -> None:
    trace = open_trace(HEAD + b"b,5,9,20\na,0,7,10\n")

    assert list(trace.events()) == [Allocate(0, 10), Allocate(1, 20), Free(0), Free(1)]


def test_at_equal_times_frees_come_first_and_then_rows_in_order() -> None:
    trace = open_trace(HEAD + b"0,0,4,1\n1,0,4,2\n2,4,8,3\n3,4,8,4\n")

    assert list(trace.operations) == [0, 1, ~0, ~1, 2, 3, ~2, ~3]
    assert trace.peak_live_nbytes == 7


def test_gzip_windows_line_ends_and_empty_lines_are_read() -> None:
    text = (HEAD + b"0,0,4,1\n\n").replace(b"\n", b"\r\n")

    assert list(open_trace(gzip.compress(text)).operations) == [0, ~0]


def test_a_file_without_rows_is_an_empty_trace() -> None:
    assert len(open_trace(HEAD)) == 0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,0,4", "a row must be id,lower,upper,size, got '1,0,4'"),
        ("1,0,4,8,9", "a row must be id,lower,upper,size, got '1,0,4,8,9'"),
        ("1,4,4,8", "lower must be below upper, got 4 and 4"),
        ("1,5,4,8", "lower must be below upper, got 5 and 4"),
        ("1,-1,4,8", "lower must not be negative, got '-1'"),
        ("1,0,x,8", "upper must be a whole number, got 'x'"),
        ("1,0,4,-8", "size must not be negative, got '-8'"),
        (
            f"1,0,4,{1 << 56}",
            "size must be below 72057594037927936, got '72057594037927936'",
        ),
        ("0,0,4,8", "id '0' is used twice"),
    ],
)
def test_a_broken_row_is_named(row: str, reason: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        open_trace(HEAD + b"0,0,4,8\n" + row.encode())

    assert str(caught.value) == f"<bytes>:3: {reason}"


def test_the_number_of_rows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_csv, "ROW_COUNT_LIMIT", 1)

    with pytest.raises(FileFormatError) as caught:
        open_trace(HEAD + b"0,0,4,8\n1,0,4,8\n")

    assert str(caught.value) == "<bytes>:3: the file has more than 1 rows"
