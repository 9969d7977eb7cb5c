"""The pages of an arena: committed, live, idle, and which to recycle."""

import pytest

from madl.core.pages import Pages
from madl.errors import CorruptedPoolError

PAGE = 100  # a page need not be a power of two here, and offsets read easily


def make_pages(states: str) -> Pages:
    """Return pages from one letter each: ``.`` missing, ``L`` live, ``i`` idle."""
    pages = Pages(len(states), PAGE)
    for page, state in enumerate(states):
        if state != ".":
            pages.commit(page, page + 1)
        if state == "L":
            pages.occupy(page * PAGE, PAGE)
    return pages


def states_of(pages: Pages) -> str:
    """Return the letters that ``make_pages`` takes, by asking page for page."""
    letters = ""
    for page in range(pages.count):
        if pages.missing(page * PAGE, PAGE):
            letters += "."
        else:
            letters += "i" if pages.idle_under(page * PAGE, PAGE) else "L"
    return letters


def test_at_first_no_page_is_committed() -> None:
    pages = Pages(4, PAGE)

    assert (pages.count, pages.committed, pages.idle) == (4, 0, 0)
    assert states_of(pages) == "...."


def test_committed_pages_are_idle_until_occupied() -> None:
    pages = Pages(4, PAGE)

    pages.commit(1, 3)

    assert (pages.committed, pages.idle) == (2, 2)
    assert states_of(pages) == ".ii."


@pytest.mark.parametrize(
    ("offset", "nbytes", "states"),
    [
        (0, 1, "Liii"),
        (99, 1, "Liii"),
        (99, 2, "LLii"),
        (100, 100, "iLii"),
        (150, 200, "iLLL"),
        (0, 400, "LLLL"),
    ],
)
def test_a_page_is_live_with_any_byte_of_it(
    offset: int, nbytes: int, states: str
) -> None:
    pages = make_pages("iiii")

    pages.occupy(offset, nbytes)

    assert states_of(pages) == states
    assert pages.idle == states.count("i")


def test_occupying_a_live_page_counts_it_once() -> None:
    pages = make_pages("iii")
    pages.occupy(0, 50)

    pages.occupy(50, 100)

    assert (pages.committed, pages.idle) == (3, 1)


@pytest.mark.parametrize(
    ("offset", "nbytes", "free", "states"),
    [
        (0, 400, (0, 400), "iiii"),
        (100, 100, (100, 100), "LiLL"),
        (150, 100, (150, 100), "LLLL"),
        (150, 200, (150, 200), "LLiL"),
        (150, 100, (100, 150), "LiLL"),
        (150, 100, (150, 150), "LLiL"),
        (150, 20, (100, 100), "LiLL"),
        (150, 20, (140, 40), "LLLL"),
    ],
)
def test_a_freed_page_is_idle_once_no_byte_of_it_is_live(
    offset: int, nbytes: int, free: tuple[int, int], states: str
) -> None:
    pages = make_pages("LLLL")

    pages.vacate(offset, nbytes, *free)

    assert states_of(pages) == states
    assert pages.idle == states.count("i")


def test_decommitted_pages_are_missing() -> None:
    pages = make_pages("Liii")

    pages.decommit(1, 3)

    assert states_of(pages) == "L..i"
    assert (pages.committed, pages.idle) == (2, 1)


@pytest.mark.parametrize(
    ("offset", "nbytes", "missing"),
    [(0, 100, 0), (50, 100, 1), (100, 100, 1), (0, 600, 3), (350, 200, 2)],
)
def test_missing_counts_the_pages_under_a_range(
    offset: int, nbytes: int, missing: int
) -> None:
    pages = make_pages("L.iL..")

    assert pages.missing(offset, nbytes) == missing


@pytest.mark.parametrize(
    ("offset", "nbytes", "runs"),
    [
        (0, 100, []),
        (50, 100, [(1, 2)]),
        (0, 700, [(1, 3), (5, 7)]),
        (250, 300, [(2, 3), (5, 6)]),
    ],
)
def test_missing_runs_are_cut_to_the_range(
    offset: int, nbytes: int, runs: list[tuple[int, int]]
) -> None:
    pages = make_pages("L..iL..")

    assert pages.missing_runs(offset, nbytes) == runs


@pytest.mark.parametrize(
    ("most", "keep", "run"),
    [
        (9, (0, 0), (5, 7)),
        (1, (0, 0), (6, 7)),
        (9, (0, 5), (5, 7)),
        (9, (4, 6), (6, 7)),
        (9, (7, 9), (5, 7)),
        (9, (6, 9), (5, 6)),
        (9, (4, 7), (1, 3)),
        (1, (3, 9), (2, 3)),
        (9, (2, 9), (1, 2)),
        (9, (1, 7), (0, 0)),
    ],
)
def test_the_last_idle_run_has_none_of_the_pages_to_keep(
    most: int, keep: tuple[int, int], run: tuple[int, int]
) -> None:
    pages = make_pages("LiiL.ii....")

    assert pages.last_idle_run(most, *keep) == run


def test_check_accepts_what_the_calls_made() -> None:
    pages = make_pages("LiL.")

    pages.check([(100, 100), (300, 100)])


def test_check_sees_a_live_page_in_a_free_block() -> None:
    pages = make_pages("LL")

    with pytest.raises(CorruptedPoolError) as caught:
        pages.check([(50, 150)])

    assert caught.value.args == ("live pages in a free block", 1, 0)


def test_check_sees_an_idle_page_under_a_live_byte() -> None:
    pages = make_pages("ii")

    with pytest.raises(CorruptedPoolError) as caught:
        pages.check([(50, 150)])

    assert caught.value.args == ("idle pages inside free blocks", 2, 1)


def test_check_sees_a_page_that_was_committed_twice() -> None:
    pages = make_pages("i.")
    pages.commit(0, 1)

    with pytest.raises(CorruptedPoolError) as caught:
        pages.check([(0, 200)])

    assert caught.value.args == ("pages counted", (2, 2), (1, 1))
