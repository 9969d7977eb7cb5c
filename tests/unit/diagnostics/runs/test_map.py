"""Ranges that come and go, and arenas drawn as one line."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madl import Pool, PoolSnapshot
from madl.diagnostics.runs.map import RangeLog, occupancy_line
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


operations = st.lists(
    st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 12)), max_size=30
)


def rows(log: RangeLog, last_moment: int) -> list[tuple[int, ...]]:
    columns = (column.tolist() for column in log.table(last_moment))
    return sorted(zip(*columns, strict=True))


@given(operations)
def test_at_every_moment_each_byte_is_there_once_or_not(
    operations: list[tuple[bool, int, int]],
) -> None:
    log, bytes_at, taken = RangeLog(), [set[int]()], set[int]()
    for moment, (adds, address, nbytes) in enumerate(operations, 1):
        span = set(range(address, address + nbytes))
        (log.add if adds else log.remove)(address, nbytes, moment)
        taken = taken | span if adds else taken - span
        bytes_at.append(taken)

    table = rows(log, len(operations))

    for moment, expected in enumerate(bytes_at):
        found = [
            byte
            for address, nbytes, start, stop in table
            for byte in range(address, address + nbytes)
            if start <= moment < stop
        ]
        assert sorted(found) == sorted(expected)


def test_what_is_left_of_a_cut_range_is_there_since_its_start() -> None:
    log = RangeLog()
    log.add(0, 100, 1)

    log.remove(40, 20, 5)

    assert log.ranges() == [(0, 40), (60, 40)]
    assert rows(log, 9) == [(0, 40, 1, 10), (40, 20, 1, 5), (60, 40, 1, 10)]


def test_a_range_that_was_there_for_no_moment_leaves_no_row() -> None:
    log = RangeLog()
    log.add(0, 100, 3)

    log.remove(0, 100, 3)

    assert rows(log, 9) == []


def test_ranges_are_in_order_of_address() -> None:
    log = RangeLog()
    starts = random.Random(1).sample(range(0, 10_000, 10), 200)

    for start in starts:
        log.add(start, 10, 0)

    assert log.ranges() == [(start, 10) for start in sorted(starts)]
