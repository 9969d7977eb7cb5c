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


@pytest.mark.parametrize(
    "head",
    ["id,lower,upper,size", "buffer,begin,upper,size", "BUFFER_ID, start ,Upper,size"],
)
def test_columns_have_the_names_that_planners_give_them(head: str) -> None:
    trace = open_trace(f"{head}\nb,5,9,20\na,0,7,10\n".encode())

    assert list(trace.events()) == [Allocate(0, 10), Allocate(1, 20), Free(0), Free(1)]
    assert trace.notes == ()


def test_a_column_end_has_the_last_time_of_a_block() -> None:
    old = open_trace(b"buffer,start,end,size\n0,0,3,1\n1,4,7,2\n2,7,7,4\n")

    assert list(old.operations) == [0, ~0, 1, 2, ~1, ~2]


def test_columns_in_any_order_and_others_are_read_and_said() -> None:
    text = b"\xef\xbb\xbfsize,gaps,id,upper,lower,offset\r\n8,1-2 3-4@5:6,x,4,0,\r\n"

    trace = open_trace(text)

    assert list(trace.events()) == [Allocate(0, 8), Free(0)]
    assert trace.notes == ("columns that are not used: gaps, offset",)


@pytest.mark.parametrize(
    "head", ["id,buffer,lower,upper,size", "id,lower,end,upper,size"]
)
def test_a_column_that_is_named_twice_is_refused(head: str) -> None:
    with pytest.raises(
        FileFormatError, match="<bytes>:1: a column is named twice: 'id"
    ):
        open_trace(f"{head}\n".encode())


def test_a_row_has_as_many_fields_as_there_are_columns() -> None:
    with pytest.raises(FileFormatError) as caught:
        open_trace(b"id,lower,upper,size,offset\n0,0,4,8\n")

    assert str(caught.value) == (
        "<bytes>:2: a row must be id,lower,upper,size,offset, got '0,0,4,8'"
    )


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
