"""What the reader makes of good files, and what it says of bad ones."""

import gzip
import os
import random
from pathlib import Path

import pytest

from madl.diagnostics import (
    Allocate,
    Free,
    Marker,
    TraceSource,
    example_path,
    open_trace,
    read_trace,
)
from madl.diagnostics.traces import builder as trace_builder
from madl.diagnostics.traces import lines as trace_lines
from madl.errors import FileFormatError

HEAD = b"# madl-trace v1\n"


def refusal(source: TraceSource) -> str:
    with pytest.raises(FileFormatError) as caught:
        open_trace(source)
    return str(caught.value)


def test_every_record_is_read_as_written() -> None:
    text = HEAD + (
        b"# name: tiny\n# device:cpu\nm,step 0, warm\na,0,100\na,1,0,-7\n"
        b"a,2,5,3,weights, frozen\nf,1\nf,0\nm,\n"
    )

    trace = read_trace(text)

    assert (trace.name, trace.headers) == ("tiny", {"name": "tiny", "device": "cpu"})
    assert list(trace.events()) == [
        Marker("step 0, warm"),
        Allocate(0, 100),
        Allocate(1, 0, stream=-7),
        Allocate(2, 5, stream=3, tag="weights, frozen"),
        Free(1),
        Free(0),
        Marker(""),
    ]


def test_columns_hold_what_the_events_say() -> None:
    trace = read_trace(HEAD + b"a,0,100\na,1,50,2,x\nf,0\na,2,60\nm,end\n")

    assert list(trace.operations) == [0, 1, ~0, 2]
    assert list(trace.nbytes_of) == [100, 50, 60]
    assert trace.stream_of is not None
    assert list(trace.stream_of) == [0, 2, 0]
    assert trace.tag_of is not None
    assert [trace.tags[tag] for tag in trace.tag_of] == [None, "x", None]
    assert trace.markers == ((4, "end"),)
    assert (len(trace), trace.allocations, trace.frees) == (4, 3, 1)
    assert trace.peak_live_nbytes == 150


def test_a_trace_without_streams_and_tags_has_no_such_columns() -> None:
    trace = read_trace(HEAD + b"a,0,100,0,\n")

    assert (trace.stream_of, trace.tag_of, trace.tags) == (None, None, (None,))


def test_a_trace_without_events_is_empty() -> None:
    trace = read_trace(HEAD)

    assert (len(trace), trace.peak_live_nbytes, list(trace.events())) == (0, 0, [])


def test_gzip_is_told_by_content_and_the_name_loses_its_suffixes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.7.trace.gz"
    path.write_bytes(gzip.compress(HEAD + b"a,0,8\n") + gzip.compress(b"f,0\n"))

    trace = open_trace(path)

    assert (trace.name, list(trace.operations)) == ("run.7", [0, ~0])


@pytest.mark.parametrize(
    "text", [b"a,0,8\r\nf,0\r\n", b"a,0,8\nf,0", b"\na,0,8\n\n# note: x\nf,0\n\n"]
)
def test_line_ends_empty_lines_and_late_comments_do_not_matter(text: bytes) -> None:
    trace = read_trace(HEAD + text)

    assert (list(trace.operations), trace.headers) == ([0, ~0], {})


def test_lines_across_blocks_are_whole() -> None:
    count = 30_000
    text = b"".join(b"a,%d,%d\n" % (i, i * 7) for i in range(count))

    trace = read_trace(HEAD + text)

    assert list(trace.nbytes_of) == [i * 7 for i in range(count)]


@pytest.mark.parametrize(
    ("records", "line", "reason"),
    [
        (
            "x,0",
            2,
            "a record must start with 'a,' (allocate), 'f,' (free) or 'm,' (marker), "
            "got 'x,0'",
        ),
        ("f,0", 2, "id 0 is freed, but only 0 are allocated"),
        ("a,0,8\nf,1", 3, "id 1 is freed, but only 1 are allocated"),
        ("a,0,8\nf,0\nf,0", 4, "id 0 is freed twice"),
        ("f,-1", 2, "id must not be negative, got '-1'"),
        ("f,0,0", 2, "id must be a whole number, got '0,0'"),
        ("f", 2, "id must be a whole number, got ''"),
        ("a,1,8", 2, "ids must count 0, 1, 2, ...: the next is 0, got 1"),
        ("a,0,8\na,0,8", 3, "ids must count 0, 1, 2, ...: the next is 1, got 0"),
        ("a,0,-8", 2, "nbytes must not be negative, got '-8'"),
        ("a,0,8.5", 2, "nbytes must be a whole number, got '8.5'"),
        ("a,0,1_0", 2, "nbytes must be a whole number, got '1_0'"),
        (
            f"a,0,{1 << 56}",
            2,
            "nbytes must be below 72057594037927936, got '72057594037927936'",
        ),
        (
            f"a,0,{'9' * 5000}",
            2,
            f"nbytes must be below 72057594037927936, got '{'9' * 40}'...",
        ),
        (
            "a,0",
            2,
            "an allocation must be 'a,<id>,<bytes>[,<stream>[,<tag>]]', "
            "but it ends after '0'",
        ),
        ("a,0,8,s1", 2, "stream must be an integer, got 's1'"),
        ("a,0,8,", 2, "stream must be an integer, got ''"),
        (
            f"a,0,8,{1 << 63}",
            2,
            "stream must be below 9223372036854775808, got '9223372036854775808'",
        ),
    ],
)
def test_a_broken_record_is_named(records: str, line: int, reason: str) -> None:
    text = HEAD + records.encode() + b"\n"

    assert refusal(text) == f"<bytes>:{line}: {reason}"


def test_a_tag_that_is_not_utf_8_is_named() -> None:
    reason = r"<bytes>:2: tag must be UTF-8, got 'w\\xff'"

    assert refusal(HEAD + b"a,0,8,0,w\xff\n") == reason


KINDS = (
    "the first line must be '# madl-trace v1' or 'id,lower,upper,size' or "
    "'Thread,Time,Action,Pointer,Size,Stream'"
)
ALL_KINDS = (
    "one of these, a journal, Umpire's log; with `madl report` a snapshot or "
    "PyTorch's pickle"
)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", ", but it is empty"),
        (b"a,0,8\n", ", got 'a,0,8'"),
        (b"# madl-trace v2\n", ", got '# madl-trace v2'"),
        (b"\x7fELF\x02\x01\x01\0\0\n", ", but this is a binary file"),
        (b"\x93NUMPY\n", ", but this is a binary file"),
        (gzip.compress(b"\0\1\2\n", mtime=0), ", but this is a binary file"),
    ],
)
def test_a_file_of_another_kind_is_refused(content: bytes, complaint: str) -> None:
    assert refusal(content) == f"<bytes>:1: {KINDS}{complaint}. Try: {ALL_KINDS}"


def test_read_trace_refuses_a_csv() -> None:
    with pytest.raises(FileFormatError) as caught:
        read_trace(b"id,lower,upper,size\n")

    assert caught.value.reason == (
        "the first line must be '# madl-trace v1', got 'id,lower,upper,size'"
    )


@pytest.mark.parametrize("nbytes_left", [3, 12, 40, -1])
def test_truncated_gzip_is_refused(nbytes_left: int) -> None:
    packed = gzip.compress(HEAD + b"".join(b"a,%d,8\n" % i for i in range(99)))

    assert refusal(packed[:nbytes_left]) == (
        "<bytes>: the gzip data ends too early. Try: copy the whole file again"
    )


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x1f\x8b\x07" + bytes(20),
        gzip.compress(HEAD, mtime=0)[:10] + b"\xff" * 30,
        gzip.compress(HEAD, mtime=0)[:-8] + bytes(8),
        gzip.compress(HEAD, mtime=0) + b"more",
    ],
)
def test_damaged_gzip_is_refused(damaged: bytes) -> None:
    assert refusal(damaged) == (
        "<bytes>: the gzip data is damaged. Try: copy the file again"
    )


def test_a_line_without_end_is_refused_before_it_is_read() -> None:
    bomb = gzip.compress(HEAD + b"m," + b"x" * (16 << 20), 1)

    assert refusal(bomb) == "<bytes>:2: the line is longer than 65536 bytes"


@pytest.mark.parametrize("nbytes", [65_536, 65_537, 131_072])
def test_the_longest_line_is_64_kib(nbytes: int) -> None:
    text = HEAD + b"m," + b"x" * (nbytes - 2) + b"\n"

    if nbytes == 65_536:
        assert len(read_trace(text).markers[0][1]) == 65_534
    else:
        assert refusal(text) == "<bytes>:2: the line is longer than 65536 bytes"


def test_the_number_of_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_lines, "LINE_COUNT_LIMIT", 3)

    assert len(read_trace(HEAD + b"a,0,1\na,1,1\n")) == 2
    assert refusal(HEAD + b"a,0,1\na,1,1\na,2,1\n") == (
        "<bytes>:4: the file has more than 3 lines"
    )


@pytest.mark.parametrize(
    "line", [b"m,%032d\n", b"# %032d: 1\n"], ids=["labels", "headers"]
)
def test_the_text_that_is_kept_is_bounded(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_builder, "TEXT_LIMIT_NBYTES", 10_000)
    text = HEAD + b"".join(line % i for i in range(100))

    assert refusal(text).endswith(
        ": headers, markers and tags take more than 10000 bytes"
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "none.trace")

    assert refusal(path) == f"{path}: No such file or directory"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: Is a directory"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file"
)
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.trace"
    path.write_bytes(HEAD)
    path.chmod(0)

    assert refusal(path) == f"{path}: Permission denied"


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_two_thousand_damaged_copies_are_read_or_refused(is_packed: bool) -> None:
    plain = gzip.decompress(example_path("gpt2-train").read_bytes())[:2000]
    whole = gzip.compress(plain, mtime=0) if is_packed else plain
    chance = random.Random(20)
    refused = 0

    for _ in range(2000):
        copy = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            where = chance.randrange(len(copy))
            copy[where : where + chance.randint(0, 3)] = chance.randbytes(
                chance.randint(0, 3)
            )
        try:
            trace = open_trace(bytes(copy))
        except FileFormatError:
            refused += 1
        else:
            assert len(list(trace.events())) == len(trace) + len(trace.markers)

    assert 0 < refused <= 2000
