"""The blocks of one arena over its pages."""

import pytest

from madl.core import IS_COMPILED, skiplist
from madl.core.first_fit import FirstFit
from madl.errors import CorruptedPoolError, UnknownBlockError

PAGE = 100
ALL = 1 << 30


def make_arena(*, pages: int = 4, committed: int = 4, look_ahead: int = 1) -> FirstFit:
    arena = FirstFit(pages * PAGE, PAGE, look_ahead)
    if committed:
        arena.pages.commit(0, committed)
    return arena


def test_a_new_arena_is_one_free_block_without_memory() -> None:
    arena = make_arena(committed=0)

    assert arena.is_empty()
    assert arena.free_blocks() == [(0, 400)]
    assert (arena.nbytes, arena.free_nbytes, arena.largest_free()) == (400, 400, 400)


def test_blocks_are_cut_from_the_low_end() -> None:
    arena = make_arena()

    offsets = [arena.allocate(nbytes) for nbytes in (30, 120, 250)]

    assert offsets == [0, 30, 150]
    assert arena.free_blocks() == []
    assert not arena.is_empty()


def test_allocate_takes_the_lowest_block_that_fits() -> None:
    arena = make_arena()
    for nbytes in (50, 10, 20, 10):
        arena.allocate(nbytes)
    arena.free(0, 50)
    arena.free(60, 20)

    assert arena.allocate(15) == 0
    assert arena.allocate(35) == 15
    assert arena.allocate(20) == 60


@pytest.mark.parametrize(("look_ahead", "offset"), [(1, 0), (2, 60), (ALL, 60)])
def test_look_ahead_takes_the_smallest_of_the_first_that_fit(
    look_ahead: int, offset: int
) -> None:
    arena = make_arena(look_ahead=look_ahead)
    for nbytes in (50, 10, 20, 10):
        arena.allocate(nbytes)
    arena.free(0, 50)
    arena.free(60, 20)

    assert arena.find(15) == offset
    assert arena.allocate(15) == offset
    arena.check()


def test_a_block_that_does_not_fit_changes_nothing() -> None:
    arena = make_arena()

    assert arena.allocate(401) == -1
    assert arena.is_empty()


def test_a_place_that_lacks_pages_is_not_taken() -> None:
    arena = make_arena(committed=1)

    assert arena.allocate(101) == -2
    assert arena.is_empty()
    assert arena.allocate(100) == 0


def test_take_places_a_block_at_an_offset() -> None:
    arena = make_arena()

    arena.take(150, 100)

    assert arena.free_blocks() == [(0, 150), (250, 150)]
    assert (arena.free_nbytes, arena.pages.idle) == (300, 2)


def test_take_refuses_what_is_not_free() -> None:
    arena = make_arena()
    arena.take(150, 100)

    with pytest.raises(UnknownBlockError):
        arena.take(100, 51)

    assert (arena.free_nbytes, arena.pages.idle) == (300, 2)


def test_a_freed_block_joins_its_free_neighbours() -> None:
    arena = make_arena()
    for _ in range(4):
        arena.allocate(50)

    arena.free(0, 50)
    arena.free(100, 50)
    arena.free(50, 50)

    assert arena.free_blocks() == [(0, 150), (200, 200)]
    assert arena.pages.idle == 3


def test_a_block_freed_twice_is_an_error_that_changes_nothing() -> None:
    arena = make_arena()
    arena.allocate(50)
    arena.allocate(50)
    arena.free(0, 50)

    with pytest.raises(UnknownBlockError) as caught:
        arena.free(0, 50)

    assert caught.value.args == (0, 50)
    assert (arena.free_nbytes, arena.free_blocks()) == (350, [(0, 50), (100, 300)])
    arena.check()


def test_find_returns_where_an_aligned_block_would_go() -> None:
    arena = make_arena()
    arena.allocate(30)

    assert arena.find(50, 64) == 64
    assert arena.find(50) == 30
    assert arena.find(350, 64) == -1


def test_an_arena_is_empty_again_when_all_is_freed() -> None:
    arena = make_arena()
    offsets = [arena.allocate(40) for _ in range(10)]

    for offset in offsets:
        arena.free(offset, 40)

    assert arena.is_empty()
    assert arena.pages.idle == 4


def test_check_sees_pages_that_do_not_match_the_blocks() -> None:
    arena = make_arena()

    arena.pages.occupy(0, 50)

    with pytest.raises(CorruptedPoolError, match="live pages in a free block"):
        arena.check()


def test_check_sees_free_bytes_that_went_missing() -> None:
    arena = make_arena()

    arena.index.carve(0, 50)

    with pytest.raises(CorruptedPoolError) as caught:
        arena.check()
    assert caught.value.args == ("free bytes", 400, 350)


@pytest.mark.skipif(IS_COMPILED, reason="tests/mallocs.py takes the memory away")
def test_a_block_is_placed_only_with_memory_for_its_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = FirstFit(100 * PAGE, PAGE)
    arena.pages.commit(0, 100)
    monkeypatch.setattr(skiplist, "_words", lambda _: [])

    offsets = []
    while (found := arena.allocate(1)) >= 0:
        offsets.append(found)
    with pytest.raises(MemoryError, match="no memory for the index of free blocks"):
        arena.take(offsets[-1] + 1, 1)
    for offset in offsets[::2]:
        arena.free(offset, 1)
    arena.check()

    assert found == -3
    assert arena.placed_count == len(offsets) // 2


@pytest.mark.skipif(IS_COMPILED, reason="tests/mallocs.py takes the memory away")
def test_without_memory_nothing_is_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = make_arena()
    arena.allocate(30)
    placed = [(10 * i, 1) for i in range(30)]

    def words(count: int) -> list[int]:
        return [0] * count if count < 2000 else []

    monkeypatch.setattr(skiplist, "_words", words)
    with pytest.raises(MemoryError, match="no memory for the index of free blocks"):
        arena.rebuild(placed * 20, [])

    assert arena.free_blocks() == [(30, 370)]
    arena.check()
