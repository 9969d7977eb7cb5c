"""NumPy's large arrays take their memory from a pool, and give it back."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import madl
from madl import MissingCapabilityError, Pool, default_pool, use_pool
from madl.diagnostics import Allocate, Free, open_trace
from madl.integrations.numpy import route

pytest.importorskip("madl.native.numpy_handler")

LARGE = 64 << 10
"""The threshold of most tests."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("cpu", limit="256 MiB")
    yield pool
    gc.collect()
    assert pool.stats().live_nbytes == 0
    pool.check()


def test_arrays_from_the_threshold_on_come_from_the_pool(pool: Pool) -> None:
    with route(LARGE, pool):
        small = np.empty(LARGE - 1, np.uint8)
        assert pool.stats().live_nbytes == 0
        large = np.empty(LARGE, np.uint8)
        assert pool.stats().live_nbytes == LARGE

    del small, large
    assert pool.stats().allocation_count == 1


def test_a_text_is_a_threshold(pool: Pool) -> None:
    with route("1.5 MiB", pool):
        arrays = [np.empty(nbytes, np.uint8) for nbytes in (1 << 20, 2 << 20)]

        assert pool.stats().live_nbytes == 2 << 20
    del arrays


def test_outside_of_the_scope_numpy_allocates_as_ever(pool: Pool) -> None:
    with route(LARGE, pool):
        pass

    array = np.empty(LARGE)

    assert pool.stats().allocation_count == 0
    del array


def test_an_array_outlives_the_scope(pool: Pool) -> None:
    with route(LARGE, pool):
        array = np.arange(LARGE)
    part = array[10:20]
    del array

    assert part.tolist() == list(range(10, 20))
    assert pool.stats().live_nbytes == LARGE * 8


def test_an_array_outlives_its_pool(pool: Pool) -> None:
    with route(LARGE, pool):
        array = np.full(LARGE, 7)
    pool.close()

    assert array.sum() == 7 * LARGE
    assert pool.stats().committed_nbytes > 0
    del array
    assert pool.stats().committed_nbytes == 0


def test_a_closed_pool_serves_no_array(pool: Pool) -> None:
    pool.close()

    with route(LARGE, pool), pytest.raises(MemoryError):
        np.empty(LARGE)


def test_the_pool_in_use_is_the_one_that_serves(pool: Pool) -> None:
    with use_pool(pool):
        served = route(LARGE)

    assert served.pool is pool
    assert route(LARGE).pool is default_pool()


@pytest.mark.parametrize("nbytes", [LARGE + 8, 3 * LARGE, LARGE, LARGE - 8, 8])
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("had", [LARGE // 2, 2 * LARGE])
def test_resize_keeps_the_content(
    pool: Pool, had: int, nbytes: int, is_inside: bool
) -> None:
    expected = np.arange(had // 8)
    kept = min(had, nbytes) // 8
    with route(LARGE, pool):
        array = np.arange(had // 8)
        if is_inside:
            array.resize(nbytes // 8, refcheck=False)
    if not is_inside:
        array.resize(nbytes // 8, refcheck=False)

    assert (array[:kept] == expected[:kept]).all()
    assert (array[kept:] == 0).all()


def test_what_shrinks_below_the_threshold_leaves_the_pool(pool: Pool) -> None:
    with route(LARGE, pool):
        array = np.arange(LARGE)
        array.resize(10, refcheck=False)

    assert pool.stats().live_nbytes == 0
    assert array.tolist() == list(range(10))


def test_arrays_that_numpy_grows_are_right(pool: Pool) -> None:
    count = 3 * LARGE
    with route(LARGE, pool):
        counted = np.fromiter(iter(range(count)), np.int64)
        parsed = np.fromstring(" ".join(map(str, range(count))), np.int64, sep=" ")

    assert (counted == np.arange(count)).all()
    assert (parsed == counted).all()


def test_zeros_are_zero_where_others_wrote(pool: Pool) -> None:
    with route(LARGE, pool):
        for _ in range(3):
            np.full(LARGE, -1)
            assert not np.zeros(LARGE).any()
            assert not np.zeros((LARGE, 0)).size


def test_any_thread_frees(pool: Pool) -> None:
    with route(LARGE, pool):
        arrays = [np.full(LARGE, n) for n in range(8)]
    threads = [threading.Thread(target=arrays.pop) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert arrays == []


def test_threads_work_side_by_side(pool: Pool) -> None:
    wrong: list[int] = []
    handed: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        with route(LARGE, pool):
            for _ in range(200):
                size = int(random.integers(1, LARGE // 4))
                array = np.full(size, seed)
                array.resize(size + int(random.integers(0, LARGE // 8)), refcheck=False)
                if (array[:size] != seed).any():
                    wrong.append(seed)
                handed.append(array)  # whoever pops it frees it
                if len(handed) > 8:
                    handed.pop(0)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handed.clear()

    assert wrong == []


def test_a_long_walk_loses_no_byte(pool: Pool) -> None:
    random = np.random.default_rng(49)
    held: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]] = []
    inside = route(LARGE, pool)
    for step in range(4000):
        size = int(random.integers(1, LARGE // 4))  # up to twice the threshold
        if step % 3 == 0:
            inside.install()
            held.append((step, np.full(size, step)))
            inside.uninstall()
        elif held and step % 3 == 1:
            value, array = held[int(random.integers(len(held)))]
            before = array.size
            array.resize(size, refcheck=False)
            array[before:] = value
        if len(held) > 20:
            value, array = held.pop(int(random.integers(len(held))))
            assert (array == value).all()
    del array
    held.clear()


def test_a_pool_at_its_limit_is_numpys_memory_error(pool: Pool) -> None:
    with route(LARGE, pool):
        array = np.empty(100 << 20, np.uint8)
        with pytest.raises(MemoryError, match="Unable to allocate 200"):
            np.empty(200 << 20, np.uint8)
        with pytest.raises(MemoryError):
            np.zeros(200 << 20, np.uint8)

        assert pool.stats().live_nbytes == 100 << 20
        array.resize(LARGE, refcheck=False)
        assert np.empty(200 << 20, np.uint8).nbytes == 200 << 20


def test_a_refused_resize_changes_nothing(pool: Pool) -> None:
    with route(LARGE, pool):
        array = np.arange(LARGE)
        with pytest.raises(MemoryError):
            array.resize(256 << 20, refcheck=False)

    assert (array == np.arange(LARGE)).all()


def test_who_holds_memory_is_asked_for_it(pool: Pool) -> None:
    with route(LARGE, pool):
        held = [np.empty(200 << 20, np.uint8)]
        pool.on_out_of_memory(lambda _: held.clear())

        assert np.empty(200 << 20, np.uint8).nbytes == 200 << 20


def test_a_recording_sees_routed_arrays_without_their_tag(
    pool: Pool, tmp_path: Path
) -> None:
    with route(LARGE, pool), madl.record(tmp_path / "run.trace"), madl.tag("arrays"):
        held = np.empty(LARGE, np.uint8)
        del held

    events = list(open_trace(tmp_path / "run.trace").events())
    assert events == [Allocate(0, LARGE), Free(0)]


def test_a_tags_limit_leaves_routed_arrays_out(pool: Pool) -> None:
    with route(LARGE, pool), madl.tag("arrays", limit=LARGE - 1):
        held = np.empty(LARGE, np.uint8)

    assert held.nbytes == pool.stats().live_nbytes
    assert pool.stats().tags == {}


@pytest.mark.parametrize(
    ("threshold", "error", "text"),
    [
        (0, ValueError, "threshold must be positive, got 0"),
        (-1, ValueError, "threshold must not be negative, got -1"),
        (
            1.5,
            TypeError,
            "threshold must be an int or a text such as '64 MiB', got 1.5 (float)",
        ),
    ],
)
def test_other_thresholds_are_refused(
    threshold: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        route(threshold)

    assert str(caught.value) == text


def test_what_is_no_pool_is_refused() -> None:
    with pytest.raises(TypeError) as caught:
        route(pool="cpu")  # type: ignore[arg-type]  # that is the test

    assert str(caught.value) == "pool must be a Pool, got 'cpu' (str)"


def test_a_pool_that_the_cpu_cannot_reach_is_refused() -> None:
    with pytest.raises(MissingCapabilityError):
        route(pool=Pool("sim"))
