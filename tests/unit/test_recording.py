"""``with madl.record(...)`` writes what happens, and disturbs nobody."""

import gc
import gzip
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import madl
from madl import Pool
from madl.diagnostics import Allocate, Event, Free, Marker, open_trace


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


def test_what_a_trace_cannot_carry_is_an_error_of_the_recording(
    pool: Pool, path: Path
) -> None:
    tag = 20_000 * "x"

    def work() -> None:
        for _ in range(5000):
            pool.allocate(8, tag=tag).free()

    with pytest.raises(ValueError, match=r"^tag must be"), madl.record(path):
        work()

    assert not path.exists()
    assert pool.stats().allocation_count == 5000


def test_a_disk_that_fills_up_is_an_error_of_the_recording(
    pool: Pool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def work() -> None:
        monkeypatch.setattr(gzip.GzipFile, "write", full)
        for _ in range(10_000):
            pool.allocate(8).free()

    with pytest.raises(OSError, match="No space left"), madl.record(path):
        work()

    assert list(path.parent.iterdir()) == []
    assert pool.stats().live_nbytes == 0


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
