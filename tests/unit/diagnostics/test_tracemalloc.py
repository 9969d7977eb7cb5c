"""``show_in_tracemalloc`` lets Python's own tracer see what pools hand out."""

import tracemalloc
from collections.abc import Iterator

import pytest

import madl
from madl import Pool
from madl.diagnostics.tracemalloc import DOMAIN

KIB = 1 << 10


@pytest.fixture
def pool() -> Iterator[Pool]:
    tracemalloc.start(10)
    yield Pool("sim")
    tracemalloc.stop()


def traced() -> list[tracemalloc.Statistic]:
    found = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.DomainFilter(True, DOMAIN)]
    )
    return found.statistics("traceback")


def test_a_block_is_seen_until_it_is_freed(pool: Pool) -> None:
    with madl.show_in_tracemalloc():
        memory = pool.allocate(64 * KIB)
    seen = traced()
    memory.free()

    (statistic,) = seen
    assert (statistic.size, statistic.count) == (64 * KIB, 1)
    lines = [line.lineno for line in statistic.traceback if line.filename == __file__]
    assert test_a_block_is_seen_until_it_is_freed.__code__.co_firstlineno + 2 in lines
    assert traced() == []


def test_blocks_without_addresses_are_told_apart(pool: Pool) -> None:
    with madl.show_in_tracemalloc():
        held = [pool.allocate(KIB) for _ in range(3)]
        other = Pool("sim").allocate(KIB)

    assert sum(statistic.count for statistic in traced()) == len(held) + 1
    del held, other
    assert traced() == []


def test_nothing_is_seen_outside_of_the_block(pool: Pool) -> None:
    with madl.show_in_tracemalloc():
        pass
    held = pool.allocate(KIB)

    assert held.nbytes == KIB
    assert traced() == []


def test_without_tracing_it_does_nothing() -> None:
    with madl.show_in_tracemalloc():
        memory = Pool("sim").allocate(KIB)
        memory.free()

    assert not tracemalloc.is_tracing()
