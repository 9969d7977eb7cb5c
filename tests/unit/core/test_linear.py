"""The first fit that searches linearly: the same answers as the index, found slowly."""

import random

import pytest

from madl.core.skiplist import SkipList
from madl.errors import CorruptedPoolError, UnknownBlockError
from tests.linear import LinearFirstFit


def make_list(*blocks: tuple[int, int]) -> LinearFirstFit:
    free = LinearFirstFit()
    for offset, nbytes in blocks:
        free.put(offset, nbytes)
    return free


def test_an_empty_list_finds_nothing() -> None:
    free = LinearFirstFit()

    assert (free.find(1), free.largest(), len(free)) == (-1, 0, 0)


def test_find_returns_the_lowest_block_that_fits() -> None:
    free = make_list((0, 10), (20, 30), (60, 40))

    assert free.find(11) == 20
    assert free.find(41) == -1


def test_find_counts_every_block_it_looks_at() -> None:
    free = make_list((0, 10), (20, 30), (60, 40))

    free.find(35)
    free.find(50)

    assert (free.visits, free.searches) == (6, 2)


def test_carve_found_takes_the_low_end() -> None:
    free = make_list((0, 10), (20, 30))

    free.find(15)
    free.carve_found(15)

    assert free.blocks() == [(0, 10), (35, 15)]


@pytest.mark.parametrize(
    ("offset", "nbytes", "left"),
    [(20, 30, []), (25, 5, [(20, 5), (30, 20)]), (20, 1, [(21, 29)])],
)
def test_carve_takes_a_range_out(
    offset: int, nbytes: int, left: list[tuple[int, int]]
) -> None:
    free = make_list((20, 30))

    free.carve(offset, nbytes)

    assert free.blocks() == left


@pytest.mark.parametrize(("offset", "nbytes"), [(10, 5), (45, 6), (50, 1)])
def test_carve_refuses_a_range_that_is_not_free(offset: int, nbytes: int) -> None:
    free = make_list((20, 30))

    with pytest.raises(UnknownBlockError) as caught:
        free.carve(offset, nbytes)

    assert caught.value.args == (offset, nbytes)
    assert free.blocks() == [(20, 30)]


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 10), (9, 2), (15, 6), (20, 1), (25, 5), (5, 60)]
)
def test_put_refuses_a_range_that_is_free_already(offset: int, nbytes: int) -> None:
    free = make_list((0, 10), (20, 30))

    with pytest.raises(UnknownBlockError) as caught:
        free.put(offset, nbytes)

    assert caught.value.args == (offset, nbytes)
    assert free.blocks() == [(0, 10), (20, 30)]


def test_check_sees_blocks_that_touch() -> None:
    free = make_list((0, 10), (20, 30))
    free._sizes[0] = 20

    with pytest.raises(CorruptedPoolError) as caught:
        free.check()

    assert caught.value.args == ("free blocks in order and apart", (20, 30), 20)


def test_it_finds_what_the_index_finds() -> None:
    draw = random.Random(7)
    free, index = make_list((0, 5000)), SkipList()
    index.put(0, 5000)
    live: list[tuple[int, int]] = []

    for _ in range(3000):
        nbytes = draw.randrange(1, 100)
        offset = free.find(nbytes)
        assert index.find(nbytes) == offset
        if offset >= 0 and draw.random() < 0.6:
            free.carve_found(nbytes)
            index.carve_found(nbytes)
            live.append((offset, nbytes))
        elif live:
            freed = live.pop(draw.randrange(len(live)))
            free.put(*freed)
            index.put(*freed)
            joined = index.joined_offset, index.joined_nbytes
            assert (free.joined_offset, free.joined_nbytes) == joined
        assert free.blocks() == index.blocks()
        assert (free.largest(), len(free)) == (index.largest(), len(index))
        free.check()
