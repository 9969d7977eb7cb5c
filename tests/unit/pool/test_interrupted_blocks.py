"""A signal handler raises as a ``with`` block begins, runs or ends, at every moment."""

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import madl
from madl import Memory, OutOfMemoryError, Pool, Spillable, hotpath, stacks
from madl.backends.protocol import Capability
from madl.diagnostics.tracemalloc import show_in_tracemalloc
from madl.diagnostics.traces.reader import open_trace
from madl.pool import tracking
from madl.pool.allocate import parts_of
from madl.testing import FakeBackend
from tests.interruptions import comes_between, is_interrupted

MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # of what finalizers swallow
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Let what was interrupted end here, and not in another test."""
    yield
    gc.collect()


def interrupt_everywhere(
    prepare: Callable[[], Callable[[], object]], verify: Callable[[], object]
) -> int:
    """Interrupt what is prepared, and verify, at each moment; return their number."""
    moments = 0
    while True:
        gc.collect()
        act = prepare()
        moments += 1
        is_inside = is_interrupted(act, moments, lambda: None)
        del act
        gc.collect()
        verify()
        if not is_inside:
            return moments - 1


def in_force() -> tuple[object, ...]:
    """Return all that is wanted of allocations now."""
    return (tracking._wishes, tracking.listeners, tracking.warns_of_drops, stacks.depth)


NOTHING_WANTED: tuple[object, ...] = ({}, (), False, 0)


def record_with_stacks(folder: Path, pool: Pool) -> None:
    with madl.record(folder / "run.trace.gz", stacks=2) as recorder:
        pool.allocate(1000, tag="a").free()
        recorder.mark("step")


def keep_stacks(_: Path, pool: Pool) -> None:
    with madl.keep_stacks(3):
        pool.allocate(1000).free()


def watch_drops(_: Path, pool: Pool) -> None:
    with madl.debug(2):
        pool.allocate(1000).free()


def trace(_: Path, pool: Pool) -> None:
    with show_in_tracemalloc():
        pool.allocate(1000).free()


def tag(_: Path, pool: Pool) -> None:
    with madl.tag("model"), madl.tag("encoder"):
        pool.allocate(1000).free()


@pytest.mark.parametrize(
    "run", [record_with_stacks, keep_stacks, watch_drops, trace, tag]
)
def test_what_a_block_wants_ends_with_it(
    run: Callable[[Path, Pool], None], tmp_path: Path
) -> None:
    pool = Pool("sim")

    def prepare() -> Callable[[], object]:
        for left in tmp_path.iterdir():  # the journal of one that was interrupted
            left.unlink()
        return lambda: run(tmp_path, pool)

    def verify() -> None:
        with madl.tag("next"):  # a change of what is wanted puts the figures right
            pass
        with madl.keep_stacks():
            pass
        assert in_force() == NOTHING_WANTED
        assert pool.stats().live_nbytes == 0
        pool.check()

    assert interrupt_everywhere(prepare, verify) > 10
    assert tracking.current_tag.get() is None


def test_a_recording_that_was_interrupted_ends(tmp_path: Path) -> None:
    pool = Pool("sim")
    file = tmp_path / "run.trace.gz"
    blocks: list[Memory] = []

    def prepare() -> Callable[[], object]:
        block = madl.record(file, stacks=2)
        block.__enter__()
        ends.append(lambda: block.__exit__(None, None, None))
        return lambda: blocks.append(pool.allocate(1000, tag="a"))

    def verify() -> None:
        blocks.clear()
        ending = threading.Thread(target=ends.pop(), daemon=True)
        ending.start()
        ending.join(30)
        assert not ending.is_alive(), "its lock is held by no thread"
        assert open_trace(file).operations is not None
        file.unlink()

    ends: list[Callable[[], object]] = []
    assert interrupt_everywhere(prepare, verify) > 10


def test_a_figure_of_wishes_that_change_at_once_is_that_of_the_last() -> None:
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        other = madl.keep_stacks(3)

        def both() -> None:
            with madl.keep_stacks(1):
                pass

        is_inside = comes_between(both, moments, other.__enter__)
        assert stacks.depth == (3 if is_inside else 0)
        if is_inside:
            other.__exit__(None, None, None)
        assert in_force() == NOTHING_WANTED

    assert moments > 10


def close_in_another_thread(*spillables: Spillable) -> list[str]:
    """Return what went wrong."""
    errors: list[str] = []

    def close() -> None:
        for spillable in spillables:
            try:
                spillable.close()
            except ValueError as error:
                errors.append(str(error))

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(30)
    return [*errors, "it waits for ever"] if thread.is_alive() else errors


def use_spilled(first: Spillable, second: Spillable) -> None:
    first.spill()
    with first as memory:
        memory.fill(3)
    second.spill_if_unused()
    with second:
        pass


def test_a_spillable_is_neither_locked_nor_in_use_afterwards() -> None:
    pool = Pool("cpu", limit="4 MiB")
    made: list[Spillable] = []

    def prepare() -> Callable[[], object]:
        made[:] = [Spillable(pool.allocate(100_000), to="host") for _ in range(2)]
        return lambda: use_spilled(*made)

    def verify() -> None:
        wrong = close_in_another_thread(*made)
        if not hotpath.IS_COMPILED:  # it may count a block that never ran as a user
            wrong = [text for text in wrong if "is in use" not in text]
        assert wrong == []
        made.clear()
        gc.collect()
        assert pool.stats().live_nbytes == 0
        pool.check()

    assert interrupt_everywhere(prepare, verify) > 10


def test_reclaimers_are_asked_again() -> None:
    pools: list[Pool] = []
    cache: list[Memory] = []

    asked: list[int] = []

    def give_up(nbytes: int) -> None:
        asked.append(nbytes)
        for memory in cache:
            memory.free()
        cache.clear()

    def prepare() -> Callable[[], object]:
        pools[:] = [Pool("sim", limit="4 MiB")]
        pools[0].on_out_of_memory(give_up)
        cache[:] = [pools[0].allocate(3 * MIB)]
        return lambda: pools[0].allocate(2 * MIB).free()

    def verify() -> None:
        asked.clear()
        pools[0].check()
        try:
            cache[:] = [pools[0].allocate(2 * MIB + MIB // 2)]
            pools[0].allocate(2 * MIB).free()
        except OutOfMemoryError:  # a block in flight stays unused
            assert not hotpath.IS_COMPILED
        assert asked

    assert interrupt_everywhere(prepare, verify) > 10


@pytest.mark.parametrize("second", [1, 2, 5, 11, 23, 47])
def test_blocks_of_a_new_stream_outlive_two_interruptions(second: int) -> None:
    """The lane of a stream exists or not; recovery frees no block that is live."""
    able = Capability.COMMIT | Capability.REMAP | Capability.STREAM_ORDERED
    able |= Capability.COPY | Capability.FILL | Capability.HOST_ACCESS
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        device = FakeBackend(total_nbytes=16 * MIB, capabilities=able)
        pool = Pool(device)
        stream = device.make_stream()

        def allocate(nbytes: int) -> None:
            pool.allocate(nbytes, stream=stream)  # noqa: B023  # called in its turn

        is_inside = is_interrupted(lambda: allocate(5000), moments, lambda: None)
        blocks = [pool.allocate(3000, stream=stream) for _ in range(5)]
        for block in blocks:
            block.fill(7)
        is_interrupted(lambda: pool.allocate(3 * MIB), second, lambda: None)  # noqa: B023
        others = [pool.allocate(3000, stream=stream) for _ in range(5)]
        for block in others:
            block.fill(99)

        assert {value for block in blocks for value in block.tobytes()} == {7}
        live = sum(block.nbytes for block in (*blocks, *others))
        gc.collect()
        lost = pool.stats().live_nbytes - live
        assert lost == 0 if hotpath.IS_COMPILED else lost in (0, 5000)
        pool.check()

    assert moments > 10


def test_recovery_frees_nothing_of_a_lane_that_it_does_not_know() -> None:
    able = Capability.COMMIT | Capability.REMAP | Capability.STREAM_ORDERED
    device = FakeBackend(total_nbytes=16 * MIB, capabilities=able)
    pool = Pool(device)
    stream = device.make_stream()
    block = pool.allocate(MIB, stream=stream)
    parts = parts_of(pool)
    lane = parts.streams.lanes.pop()

    parts.shared.was_interrupted = True
    pool.allocate(100).free()  # recovers

    others = [pool.allocate(MIB // 2, stream=stream) for _ in range(4)]
    parts.streams.lanes.append(lane)
    spans = sorted((one.address, one.nbytes) for one in (block, *others))
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))


def test_handles_that_are_dropped_come_back() -> None:
    pool = Pool("sim")
    held: list[Memory] = []

    def prepare() -> Callable[[], object]:
        held[:] = [pool.allocate(1000, tag="a"), pool.allocate(3 * MIB)]
        return held.clear

    def verify() -> None:
        held.clear()
        gc.collect()
        with suppress(OutOfMemoryError):
            pool.allocate(500).free()
        pool.check()
        if hotpath.IS_COMPILED:
            assert pool.stats().live_nbytes == 0
        pool.trim()

    interrupt_everywhere(prepare, verify)
