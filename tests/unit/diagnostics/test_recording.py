"""``with madl.record(...)`` writes what happens, and disturbs nobody."""

import gc
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

import madl
import madl.stacks
from madl import Capability, Pool
from madl.diagnostics import Allocate, Event, Free, Marker, open_trace
from madl.diagnostics.traces.journal import JournalWriter
from madl.testing.fakes import FakeBackend
from tests.disk import no_file_larger_than


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("sim") as pool:
        yield pool
        pool.check()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.trace.gz"


def events(path: Path) -> list[Event]:
    return list(open_trace(path).events())


def test_allocations_frees_tags_and_markers_are_written(pool: Pool, path: Path) -> None:
    with madl.record(path, name="mine") as recorder:
        first = pool.allocate(100)
        recorder.mark("step 1")
        second = pool.allocate("1 KiB", tag="a")
        first.free()
        with madl.tag("b"):
            pool.allocate(0).free()
        del second

    assert open_trace(path).name == "mine"
    assert events(path) == [
        Allocate(0, 100),
        Marker("step 1"),
        Allocate(1, 1024, tag="a"),
        Free(0),
        Allocate(2, 0, tag="b"),
        Free(2),
        Free(1),
    ]


def test_all_pools_are_recorded(pool: Pool, path: Path) -> None:
    other = Pool("sim")
    with madl.record(path):
        held = pool.allocate(1), other.allocate(2)

    assert len(held) == 2
    assert events(path) == [Allocate(0, 1), Allocate(1, 2)]


def test_what_was_live_before_is_not_recorded(pool: Pool, path: Path) -> None:
    before = pool.allocate(8)

    with madl.record(path):
        before.free()

    assert events(path) == []


def test_a_block_is_freed_when_the_last_view_is_gone(path: Path) -> None:
    with Pool("cpu") as pool, madl.record(path) as recorder:
        memory = pool.allocate(8)
        view = memory.memoryview()
        memory.free()
        recorder.mark("freed")
        del view

    assert events(path) == [Allocate(0, 8), Marker("freed"), Free(0)]


def test_frees_by_the_collector_are_recorded(pool: Pool, path: Path) -> None:
    with madl.record(path):
        cycle: list[object] = [pool.allocate(8)]
        cycle.append(cycle)
        del cycle
        gc.collect()

    assert events(path) == [Allocate(0, 8), Free(0)]


def test_nothing_is_heard_after_the_end(pool: Pool, path: Path) -> None:
    with madl.record(path):
        memory = pool.allocate(8)
    memory.free()
    pool.allocate(9)

    assert events(path) == [Allocate(0, 8)]


def test_recordings_may_nest(pool: Pool, path: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner.trace.gz"
    with madl.record(path):
        first = pool.allocate(1)
        with madl.record(inner):
            second = pool.allocate(2)
            first.free()
        second.free()

    assert events(inner) == [Allocate(0, 2)]
    assert events(path) == [Allocate(0, 1), Allocate(1, 2), Free(0), Free(1)]


def test_a_recording_knows_tags_from_before_its_start(
    pool: Pool, path: Path, tmp_path: Path
) -> None:
    inner = tmp_path / "inner.trace.gz"
    with madl.record(path):
        pool.allocate(1, tag="a").free()
        with madl.record(inner):
            pool.allocate(2, tag="a").free()
            pool.allocate(3, tag="b").free()
        pool.allocate(4, tag="b").free()

    assert [e.tag for e in events(inner) if isinstance(e, Allocate)] == ["a", "b"]
    assert [e.tag for e in events(path) if isinstance(e, Allocate)] == list("aabb")


def test_an_error_inside_leaves_a_whole_trace(pool: Pool, path: Path) -> None:
    def work() -> None:
        pool.allocate(8)
        raise KeyError

    with pytest.raises(KeyError), madl.record(path):
        work()

    assert events(path) == [Allocate(0, 8), Free(0)]


def test_threads_may_allocate_while_it_ends(pool: Pool, path: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                pool.allocate(8).free()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with madl.record(path):
            pool.allocate(16).free()
    stop.set()
    for thread in threads:
        thread.join()

    assert failures == []
    assert open_trace(path).allocations >= 1


def test_a_long_recording_is_complete(pool: Pool, path: Path) -> None:
    with madl.record(path):
        for nbytes in range(20_000):
            pool.allocate(nbytes % 5000).free()

    trace = open_trace(path)
    assert (trace.allocations, trace.frees) == (20_000, 20_000)


def test_a_tag_that_a_trace_cannot_carry_is_cut(pool: Pool, path: Path) -> None:
    with madl.record(path):
        pool.allocate(8, tag=20_000 * "x").free()

    assert open_trace(path).tags == (None, 16_384 * "x")


def test_a_tag_that_comes_as_the_recording_ends_disturbs_nobody(path: Path) -> None:
    writer = JournalWriter(path, {"name": "mine"})
    writer.close()

    writer.define_tag(1, "late")

    writer.remove()


def test_stacks_say_who_allocates_innermost_first(pool: Pool, path: Path) -> None:
    def inner() -> madl.Memory:
        return pool.allocate(8)

    with madl.record(path, stacks=2):
        kept = [inner() for _ in range(2)]
        kept.append(pool.allocate(9))

    trace = open_trace(path)
    allocations = [e for e in trace.events() if isinstance(e, Allocate)]
    first, second = allocations[0].stack
    assert (first.filename, first.function) == (__file__, "inner")
    assert (second.filename, second.number > first.number) == (__file__, True)
    assert [len(a.stack) for a in allocations] == [2, 2, 2]
    assert allocations[0].stack == allocations[1].stack != allocations[2].stack
    assert len(trace.stacks) == 3, "none, and one for each line that allocates"


def test_a_frame_between_two_lines_has_that_of_its_function(
    pool: Pool, path: Path
) -> None:
    """As one that a signal handler came into."""
    # Code without a table of lines is in between all the time.
    code = (lambda: pool.allocate(100)).__code__.replace(co_linetable=b"")
    closure = (lambda: pool).__closure__

    with madl.record(path, stacks=1):
        FunctionType(code, {}, None, None, closure)()

    allocate, _ = events(path)
    assert isinstance(allocate, Allocate)
    assert [line.number for line in allocate.stack] == [code.co_firstlineno]


def test_stacks_are_captured_once_for_all_that_want_them(
    pool: Pool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[madl.stacks.Stack] = []
    capture = madl.stacks.capture

    def noted() -> madl.stacks.Stack:
        captured.append(capture())
        return captured[-1]

    monkeypatch.setattr(madl.stacks, "capture", noted)

    with (
        madl.keep_stacks(3),
        madl.record(path, stacks=2),
        madl.record(tmp_path / "other.trace.gz", stacks=1),
    ):
        held = pool.allocate(8)
        del held

    assert len(captured) == 1
    assert open_trace(path).stacks[1] == captured[0][:2]
    assert open_trace(tmp_path / "other.trace.gz").stacks[1] == captured[0][:1]


@pytest.mark.parametrize("stacks", [-1, 65])
def test_a_depth_that_is_out_of_range_is_refused(stacks: int, path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"^stacks must be from 0 to 64, got {stacks}$"
    ):
        madl.record(path, stacks=stacks).__enter__()

    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("stacks", [0, 1])
def test_streams_are_numbered_within_their_pool(stacks: int, path: Path) -> None:
    backend = FakeBackend(capabilities=Capability.COMMIT | Capability.STREAM_ORDERED)
    pool = Pool(backend)
    first, second = backend.make_stream(), backend.make_stream()
    with madl.record(path, stacks=stacks):
        for stream in (None, first, second, first):
            pool.allocate(8, stream=stream).free()

    trace = open_trace(path)
    assert [e.stream for e in trace.events() if isinstance(e, Allocate)] == [0, 1, 2, 1]


def test_while_it_lasts_there_is_a_journal_beside_it(pool: Pool, path: Path) -> None:
    with madl.record(path, name="mine") as recorder:
        kept = pool.allocate(100, tag="a"), pool.allocate(7)
        recorder.mark("half")
        pool.allocate(50).free()
        trace = open_trace(path.with_name("run.trace.gz.journal"))

    assert len(kept) == 2
    assert list(trace.events()) == events(path)
    assert trace.name == "mine"
    assert trace.notes == (
        "a journal, of a recording that has not ended: "
        "4 events were written until then",
    )
    assert [file.name for file in path.parent.iterdir()] == ["run.trace.gz"]


def test_a_journal_that_is_there_is_not_overwritten(pool: Pool, path: Path) -> None:
    journal = path.with_name("run.trace.gz.journal")
    journal.write_bytes(b"of a process that was killed")

    with pytest.raises(FileExistsError) as caught:
        madl.record(path).__enter__()

    assert str(caught.value).endswith(
        f"a recording to {str(path)!r} is running, or did not end. Try: `madl replay` "
        f"of its journal, and then remove that: {str(journal)!r}"
    )
    assert journal.read_bytes() == b"of a process that was killed"
    assert pool.allocate(8).tag is None


def test_a_folder_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "run.trace.gz"

    with pytest.raises(FileNotFoundError) as caught:
        madl.record(path).__enter__()

    assert str(caught.value) == (
        f"[Errno 2] cannot record: No such file or directory: {str(path)!r}"
    )


@pytest.mark.parametrize("stacks", [0, 1])
def test_a_disk_that_fills_up_ends_the_recording_and_nothing_else(
    stacks: int, pool: Pool, path: Path
) -> None:
    def work() -> None:
        with no_file_larger_than(300_000):
            for _ in range(20_000):
                pool.allocate(8).free()

    with (
        pytest.raises(OSError, match="File too large") as caught,
        madl.record(path, stacks=stacks),
    ):
        work()

    assert pool.stats().free_count == 20_000
    (journal,) = path.parent.iterdir()
    assert caught.value.__notes__ == [
        f"What was recorded until then is in {str(journal)!r}, "
        "which `madl replay` reads."
    ]
    trace = open_trace(journal)
    assert 2000 < trace.allocations < 40_000
    assert trace.peak_live_nbytes == 8


def test_a_disk_that_is_full_at_the_start_is_told_then(pool: Pool, path: Path) -> None:
    with no_file_larger_than(100), pytest.raises(OSError, match="File too large"):
        madl.record(path).__enter__()

    assert list(path.parent.iterdir()) == []
    assert pool.allocate(8).tag is None


def test_a_trace_that_finds_no_room_leaves_the_journal(pool: Pool, path: Path) -> None:
    recording = madl.record(path)
    recording.__enter__()
    pool.allocate(8).free()

    with no_file_larger_than(0), pytest.raises(OSError, match="File too large"):
        recording.__exit__(None, None, None)

    assert len(open_trace(path.with_name("run.trace.gz.journal"))) == 2


def test_a_path_that_cannot_be_written_is_refused_at_the_start(
    pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"^path must name a file") as caught:
        madl.record(tmp_path).__enter__()

    assert str(caught.value) == f"path must name a file, got {str(tmp_path)!r}"
    assert pool.allocate(8).tag is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_not_recorded(pool: Pool, path: Path) -> None:
    with madl.record(path) as recorder:
        for nbytes in range(3000):
            pool.allocate(nbytes).free()
        recorder.mark("before")
        child = os.fork()
        if child == 0:
            for _ in range(9000):
                pool.allocate(8).free()
            recorder.finish()
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        pool.allocate(5).free()

    assert status == 0
    trace = open_trace(path)
    assert (trace.allocations, trace.frees) == (3001, 3001)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such mode")
def test_nobody_else_may_read_the_journal(tmp_path: Path) -> None:
    target = tmp_path / "run.trace.gz"

    with madl.record(target):
        journal = tmp_path / "run.trace.gz.journal"
        mode = stat.S_IMODE(journal.stat().st_mode)

    assert mode == 0o600
