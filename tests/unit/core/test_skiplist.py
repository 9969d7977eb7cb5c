"""The index of free blocks, call by call."""

import math
import random

import pytest

from madl.core import IS_COMPILED, skiplist
from madl.core.skiplist import SkipList
from madl.errors import CorruptedPoolError, UnknownBlockError


def make_index(*blocks: tuple[int, int]) -> SkipList:
    index = SkipList()
    for offset, nbytes in blocks:
        index.put(offset, nbytes)
    return index


def make_rising(count: int) -> SkipList:
    """Return an index of ``count`` blocks, each larger than the one below it."""
    index = SkipList()
    offset = 0
    for nbytes in range(1, count + 1):
        index.put(offset, nbytes)
        offset += nbytes + 1
    return index


def test_an_empty_index_finds_nothing() -> None:
    index = SkipList()

    assert len(index) == 0
    assert index.largest() == 0
    assert index.find(1) == -1
    assert index.find_best(1, 9) == -1
    assert index.find_aligned(1, 8) == -1
    assert index.covering(0) == -1
    assert index.blocks() == []


def test_find_returns_the_lowest_block_that_fits() -> None:
    index = make_index((0, 10), (20, 30), (60, 40), (110, 30))

    assert index.find(10) == 0
    assert index.find(11) == 20
    assert index.find(31) == 60
    assert index.find(41) == -1


def test_find_changes_nothing() -> None:
    index = make_index((0, 10), (20, 30))

    index.find(15)

    assert index.blocks() == [(0, 10), (20, 30)]


def test_carve_found_takes_the_low_end() -> None:
    index = make_index((0, 10), (20, 30))

    index.find(15)
    index.carve_found(15)

    assert index.blocks() == [(0, 10), (35, 15)]


def test_carve_found_takes_a_block_of_the_same_size_whole() -> None:
    index = make_index((0, 10), (20, 30), (60, 5))

    index.find(30)
    index.carve_found(30)

    assert index.blocks() == [(0, 10), (60, 5)]
    assert index.largest() == 10


@pytest.mark.parametrize(("most", "offset"), [(1, 0), (2, 60), (3, 110), (99, 110)])
def test_find_best_looks_at_the_first_blocks_that_fit(most: int, offset: int) -> None:
    index = make_index((0, 50), (52, 1), (60, 40), (110, 30), (150, 30))

    assert index.find_best(25, most) == offset


def test_carve_best_takes_from_the_block_found() -> None:
    index = make_index((0, 50), (60, 40), (110, 30))

    index.carve_best(index.find_best(25, 3), 25)
    index.carve_best(index.find_best(45, 3), 45)

    assert index.blocks() == [(45, 5), (60, 40), (135, 5)]


def test_find_aligned_passes_by_blocks_without_an_aligned_place() -> None:
    index = make_index((1, 70), (100, 40), (193, 128))

    assert index.find_aligned(7, 64) == 64
    assert index.find_aligned(8, 64) == 128
    assert index.find_aligned(64, 64) == 256
    assert index.find_aligned(66, 64) == -1


def test_find_aligned_takes_a_block_that_starts_aligned() -> None:
    index = make_index((64, 64), (192, 64))

    assert index.find_aligned(64, 64) == 64


@pytest.mark.parametrize(
    ("offset", "nbytes", "left"),
    [
        (20, 30, [(0, 10)]),
        (20, 10, [(0, 10), (30, 20)]),
        (40, 10, [(0, 10), (20, 20)]),
        (30, 10, [(0, 10), (20, 10), (40, 10)]),
    ],
)
def test_carve_takes_a_range_out(
    offset: int, nbytes: int, left: list[tuple[int, int]]
) -> None:
    index = make_index((0, 10), (20, 30))

    index.carve(offset, nbytes)

    assert index.blocks() == left
    index.check()


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(10, 1), (19, 1), (15, 10), (49, 2), (50, 1), (5, 20)]
)
def test_carve_refuses_a_range_that_is_not_free(offset: int, nbytes: int) -> None:
    index = make_index((0, 10), (20, 30))

    with pytest.raises(UnknownBlockError) as caught:
        index.carve(offset, nbytes)

    assert caught.value.args == (offset, nbytes)
    assert index.blocks() == [(0, 10), (20, 30)]


@pytest.mark.parametrize(
    ("offset", "nbytes", "joined"),
    [
        (12, 6, (12, 6)),
        (10, 8, (0, 18)),
        (12, 8, (12, 38)),
        (10, 10, (0, 50)),
        (50, 1, (20, 31)),
        (60, 1, (60, 1)),
    ],
)
def test_put_joins_free_neighbours(
    offset: int, nbytes: int, joined: tuple[int, int]
) -> None:
    index = make_index((0, 10), (20, 30))

    index.put(offset, nbytes)

    assert (index.joined_offset, index.joined_nbytes) == joined
    assert joined in index.blocks()
    index.check()


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 10), (9, 2), (15, 6), (20, 1), (49, 5), (5, 40)]
)
def test_put_refuses_a_range_that_is_free_already(offset: int, nbytes: int) -> None:
    index = make_index((0, 10), (20, 30))

    with pytest.raises(UnknownBlockError) as caught:
        index.put(offset, nbytes)

    assert caught.value.args == (offset, nbytes)
    assert index.blocks() == [(0, 10), (20, 30)]


def test_covering_returns_where_the_block_around_an_offset_starts() -> None:
    index = make_index((0, 10), (20, 30))

    assert index.covering(0) == 0
    assert index.covering(9) == 0
    assert index.covering(10) == -1
    assert index.covering(49) == 20
    assert index.covering(50) == -1


def test_offsets_and_sizes_may_be_large() -> None:
    index = make_index((0, 1 << 40), (1 << 61, 1 << 60))

    assert index.find(1 << 50) == 1 << 61
    assert index.largest() == 1 << 60


def test_the_same_calls_visit_the_same_nodes() -> None:
    indexes = [make_rising(500), make_rising(500)]

    for index in indexes:
        for nbytes in range(1, 500, 7):
            index.find(nbytes)

    assert indexes[0].visits == indexes[1].visits


def test_the_places_of_removed_nodes_are_used_again() -> None:
    index = make_rising(2000)
    blocks = index.blocks()

    for _ in range(3):
        for offset, nbytes in blocks:
            index.carve(offset, nbytes)
        for offset, nbytes in reversed(blocks):
            index.put(offset, nbytes)

    assert index.blocks() == blocks
    index.check()


@pytest.mark.skipif(IS_COMPILED, reason="nobody reaches the words of compiled code")
@pytest.mark.parametrize(
    ("word", "value", "what"),
    [
        (3, 99, "reach of a link on level 1"),
        (4, 999, "links of a level"),
        (28, 60, "free blocks in order and apart"),
    ],
)
def test_check_sees_a_word_that_was_overwritten(
    word: int, value: int, what: str
) -> None:
    index = make_index((0, 10), (20, 30))

    index.words[word] = value

    with pytest.raises(CorruptedPoolError) as caught:
        index.check()
    assert caught.value.what == what


@pytest.mark.skipif(IS_COMPILED, reason="nobody reaches the count of compiled code")
def test_check_sees_a_wrong_count() -> None:
    index = make_index((0, 10), (20, 30))

    index.count += 1

    with pytest.raises(CorruptedPoolError) as caught:
        index.check()
    assert caught.value.args == ("free blocks counted", 3, 2)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_reserved_needs_no_memory(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, ``tests/mallocs.py`` takes the memory away."""
    draw = random.Random(seed)
    index = SkipList()
    most = 1017  # low nodes fill an array, whose length is a power of two
    assert index.reserve(most)
    if not IS_COMPILED:
        monkeypatch.setattr(skiplist, "_words", lambda _: [])
    free: set[int] = set()
    every = draw.sample(range(most), most)

    for number in every + draw.choices(every, k=3000):
        place = 10 * number
        if place in free:
            index.carve(place, 5)
        else:
            index.put(place, 5)
        free ^= {place}
    index.check()

    assert index.blocks() == [(place, 5) for place in sorted(free)]


@pytest.mark.skipif(IS_COMPILED, reason="tests/mallocs.py takes the memory away")
def test_without_memory_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    index = SkipList()
    monkeypatch.setattr(skiplist, "_words", lambda _: [])

    assert not index.reserve(1000)
    count = 0
    while not index.try_put(10 * count, 5):
        count += 1
    with pytest.raises(MemoryError, match="no memory for the index of free blocks"):
        index.put(10 * count, 5)
    index.put(10 * count - 5, 5)  # what joins needs no record
    with pytest.raises(MemoryError, match="no memory for the index of free blocks"):
        index.carve(11, 1)

    assert len(index) == count
    index.check()


@pytest.mark.skipif(IS_COMPILED, reason="tests/mallocs.py takes the memory away")
def test_there_is_no_index_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skiplist, "_words", lambda _: [])

    with pytest.raises(MemoryError, match="no memory for the index of free blocks"):
        SkipList()


def mean_visits(count: int) -> float:
    """Return the nodes visited per search among ``count`` blocks, sizes rising."""
    index = make_rising(count)
    draw = random.Random(count)
    for _ in range(2000):
        index.find(draw.randint(1, count))
    return index.visits / index.searches


@pytest.mark.parametrize("count", [10, 100, 1_000, 10_000, 100_000])
def test_a_search_visits_few_nodes(count: int) -> None:
    assert mean_visits(count) <= 2.5 * math.log2(count) + 3


@pytest.mark.slow
def test_a_search_visits_few_nodes_of_a_million() -> None:
    assert mean_visits(1_000_000) <= 2.5 * math.log2(1_000_000) + 3
