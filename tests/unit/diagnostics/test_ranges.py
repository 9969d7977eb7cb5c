"""Ranges of addresses that come and go."""

import random

from hypothesis import given
from hypothesis import strategies as st

from madl.diagnostics.ranges import RangeLog

operations = st.lists(
    st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 12)), max_size=30
)


def rows(log: RangeLog, last_moment: int) -> list[tuple[int, ...]]:
    flat = log.rows(last_moment).tolist()
    return sorted(tuple(flat[n : n + 4]) for n in range(0, len(flat), 4))


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
