"""A trace is written whole or not at all."""

import contextlib
import gc
import gzip
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from madl.diagnostics import Allocate, TraceWriter, read_trace
from madl.errors import FileFormatError
from madl.sizes import ADDRESS_SPACE_NBYTES
from madl.stacks import Line
from tests.disk import no_file_larger_than


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.trace.gz"


def test_the_text_is_what_the_format_says(path: Path) -> None:
    with TraceWriter(path, {"name": "tiny", "device": "sim"}) as writer:
        first = writer.allocate(100)
        writer.mark("step 0")
        writer.allocate(5, stream=3)
        writer.allocate(6, tag="weights")
        writer.free(first)

    assert gzip.decompress(path.read_bytes()).decode() == (
        "# madl-trace v1\n# name: tiny\n# device: sim\n"
        "a,0,100\nm,step 0\na,1,5,3\na,2,6,0,weights\nf,0\n"
    )


def test_equal_calls_write_equal_files(tmp_path: Path) -> None:
    paths = [tmp_path / "one.trace.gz", tmp_path / "two.trace.gz"]

    for path in paths:
        with TraceWriter(path) as writer:
            writer.allocate(1)

    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes()[4:8] == bytes(4), "the time of writing is in it"


def test_a_long_trace_goes_to_disk_in_pieces(path: Path) -> None:
    with TraceWriter(path) as writer:
        for nbytes in range(10_000):
            writer.allocate(nbytes)

    assert list(read_trace(path).nbytes_of) == list(range(10_000))


def test_nothing_has_the_name_until_close(path: Path) -> None:
    writer = TraceWriter(path)
    before = path.exists()

    writer.close()

    assert (before, [file.name for file in path.parent.iterdir()]) == (
        False,
        ["run.trace.gz"],
    )


def test_an_exception_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    path.write_bytes(b"old")

    with pytest.raises(ValueError, match="must be live"), TraceWriter(path) as writer:
        writer.free(writer.allocate(1) + 1)

    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_nothing(path: Path) -> None:
    with no_file_larger_than(0):  # first: it skips where there is no such limit
        writer = TraceWriter(path)
        writer.allocate(1)
        with pytest.raises(OSError, match="File too large"):
            writer.close()

    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "run.trace.gz"

    with pytest.raises(FileNotFoundError) as caught:
        TraceWriter(path)

    assert str(caught.value) == (
        f"[Errno 2] cannot write a trace: No such file or directory: {str(path)!r}"
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("use", ["drop", "discard", "close", "write"])
def test_a_forked_child_neither_writes_nor_removes(use: str, path: Path) -> None:
    writer = TraceWriter(path)
    for nbytes in range(3000):
        writer.allocate(nbytes)
    child = os.fork()
    if child == 0:
        try:
            if use == "write":
                with contextlib.suppress(ValueError):
                    writer.allocate(1)
            elif use == "discard":
                writer.discard()
            elif use == "close":
                writer.close()
            del writer
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    writer.close()

    assert list(read_trace(path).nbytes_of) == list(range(3000))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("#s,1", "stack 1 has not been described"),
        ("#s,x", "stack must be a whole number, got 'x'"),
        ("#s,1,[1]", "a stack must be a list of [file, line, function]"),
        ('#s,1,[["a",1,"f"]', "a stack must be a list of [file, line, function]"),
        (
            "#s,1,[" + ",".join(65 * ['["a",1,"f"]']) + "]",
            "a stack has at most 64 lines, got 65",
        ),
    ],
)
def test_a_broken_stack_is_named(line: str, reason: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read_trace(f"# madl-trace v1\na,0,1\n{line}\n".encode())

    assert str(caught.value) == f"<bytes>:3: {reason}"


def test_the_last_stack_before_an_allocation_counts_and_one_before_none_does_not() -> (
    None
):
    trace = read_trace(
        b'# madl-trace v1\n#s,1,[["a",1,"f"]]\n#s,2,[["b",2,"g"]]\na,0,1\n#s,1\n'
    )

    assert list(trace.events()) == [Allocate(0, 1, stack=(Line("b", 2, "g"),))]
    assert list(trace.stack_of or ()) == [2]


def test_stacks_come_back_and_are_comments_to_others(path: Path) -> None:
    stacks = ((Line("a,b.py", 3, "f"),), (Line("a,b.py", 4, "g"), Line("é", 1, "h")))
    with TraceWriter(path) as writer:
        writer.allocate(1)
        writer.allocate(2, stack=stacks[0])
        writer.free(writer.allocate(3, tag="t", stack=stacks[1]))
        writer.allocate(4, stack=stacks[0])

    allocations = [e for e in read_trace(path).events() if isinstance(e, Allocate)]
    assert [a.stack for a in allocations] == [(), stacks[0], stacks[1], stacks[0]]
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "a,0,1",
        "a,1,2",
        "a,2,3,0,t",
        "f,2",
        "a,3,4",
    ]


def test_closing_and_discarding_again_do_nothing(path: Path) -> None:
    writer = TraceWriter(path)
    writer.close()

    writer.close()
    writer.discard()

    assert len(read_trace(path)) == 0


def test_a_link_stays_a_link(path: Path) -> None:
    target = path.with_name("target.trace.gz")
    target.write_bytes(b"old")
    path.symlink_to(target)

    TraceWriter(path).close()

    assert path.is_symlink()
    assert len(read_trace(target)) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda writer: writer.allocate(-1),
            "nbytes must not be negative, got -1",
        ),
        pytest.param(
            lambda writer: writer.allocate(1 << 56),
            "nbytes must be below 72057594037927936, got 72057594037927936",
            marks=pytest.mark.skipif(
                ADDRESS_SPACE_NBYTES <= 1 << 56,
                reason="a trace holds all that there are addresses for",
            ),
        ),
        (
            lambda writer: writer.allocate(1, stream=1 << 63),
            "stream must fit 64 bits, got 9223372036854775808",
        ),
        (
            lambda writer: writer.allocate(1, stream=-(1 << 63)),
            "stream must fit 64 bits, got -9223372036854775808",
        ),
        (
            lambda writer: writer.allocate(1, tag="a\nb"),
            r"tag must be on one line, got 'a\nb'",
        ),
        (
            lambda writer: writer.mark("a\rb"),
            r"label must be on one line, got 'a\rb'",
        ),
        (
            lambda writer: writer.mark("\ud800"),
            r"label must be valid Unicode, got '\ud800'",
        ),
        (
            lambda writer: writer.mark("x" * 16_385),
            "label must be at most 16384 bytes, got 16385",
        ),
        (lambda writer: writer.free(0), "allocation must be live, got 0"),
        (lambda writer: writer.free(-1), "allocation must be live, got -1"),
    ],
)
def test_what_a_trace_cannot_hold_is_refused_and_nothing_is_written(
    call: Callable[[TraceWriter], object], message: str, path: Path
) -> None:
    with TraceWriter(path) as writer:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
            call(writer)
        writer.allocate(7)

    assert str(caught.value) == message
    assert list(read_trace(path).nbytes_of) == [7]


def test_freeing_twice_is_refused(path: Path) -> None:
    with TraceWriter(path) as writer:
        writer.free(writer.allocate(1))

        with pytest.raises(ValueError, match=r"^allocation must be live, got 0$"):
            writer.free(0)


@pytest.mark.parametrize("key", ["", "a:b", " a"])
def test_a_header_key_that_would_not_come_back_is_refused(key: str, path: Path) -> None:
    message = f"header must be a word without ':' and outer spaces, got {key!r}"

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
        TraceWriter(path, {key: "1"})

    assert str(caught.value) == message
    assert list(path.parent.iterdir()) == []


def test_a_directory_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
        TraceWriter(tmp_path)

    assert str(caught.value) == f"path must name a file, got {str(tmp_path)!r}"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX's names of pipes")
def test_a_pipe_is_refused_at_once() -> None:
    ours, theirs = os.pipe()

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
        TraceWriter(f"/dev/fd/{theirs}")
    os.close(ours)
    os.close(theirs)

    assert str(caught.value) == f"path must name a file, got '/dev/fd/{theirs}'"


def test_a_closed_writer_refuses_events(path: Path) -> None:
    writer = TraceWriter(path)
    writer.close()

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
        writer.mark("late")

    assert str(caught.value) == f"the trace {str(path)!r} is closed"
