"""Arenas drawn as a line of text."""

import pytest

from madl import Pool, PoolSnapshot
from madl.diagnostics.occupancy import occupancy_line
from madl.pool.stats import ArenaSnapshot, BlockSnapshot

PAGE = 1000


def arena(*spans: tuple[str, int], committed: list[tuple[int, int]]) -> ArenaSnapshot:
    blocks, offset = [], 0
    for state, nbytes in spans:
        blocks.append(BlockSnapshot(offset, nbytes, state, nbytes))
        offset += nbytes
    return ArenaSnapshot(offset, None, PAGE, tuple(committed), tuple(blocks))


def draw(*arenas: ArenaSnapshot, width: int = 10) -> str:
    return occupancy_line(PoolSnapshot("sim", 0, 0, arenas), width=width)


def test_nothing_committed_is_said_in_words() -> None:
    assert draw(arena(("free", 9000), committed=[])) == "(nothing is committed)"
    assert draw() == "(nothing is committed)"


def test_each_character_says_how_full_its_piece_is() -> None:
    drawn = draw(
        arena(
            ("live", 2000),
            ("free", 2000),
            ("live", 700),
            ("free", 300),
            ("live", 300),
            ("binned", 3700),
            committed=[(0, 3000), (4000, 5000)],
        ),
        width=9,
    )

    assert drawn == "##._+-..."


def test_what_lies_above_the_last_committed_byte_is_not_drawn() -> None:
    drawn = draw(arena(("live", 1000), ("free", 9000), committed=[(0, 2000)]))

    assert drawn == "#####....."


def test_arenas_share_the_width_by_their_size() -> None:
    small = arena(("live", 1000), committed=[(0, 1000)])
    large = arena(("free", 3000), committed=[(0, 3000)])

    assert draw(small, large, width=9) == "##|......"


@pytest.mark.parametrize("width", [1, 7, 64, 80])
def test_a_pool_is_drawn_in_the_width_asked_for(width: int) -> None:
    pool = Pool("sim")
    held = [pool.allocate(300_000) for _ in range(50)][::2]

    drawn = occupancy_line(pool.snapshot(), width=width)

    assert len(held) == 25
    assert len(drawn) == width


def test_the_bars_between_arenas_count() -> None:
    spans = [137, 1, 4000, 999]
    drawn = draw(
        *(arena(("live", nbytes), committed=[(0, nbytes)]) for nbytes in spans),
        width=80,
    )

    assert len(drawn) == 80
    assert drawn.count("|") == 3
