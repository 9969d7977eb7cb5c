"""How does the cost of a search grow with the number of free blocks?

The worst case for first fit: sizes rise with offsets, and every size is asked for
equally often, so that a linear search passes half of the blocks.
"""

import importlib
import math
import random
from collections.abc import Callable
from typing import Protocol

from benchmarks.answer import Answer, Row, Table
from benchmarks.sorted_lists import TwoSortedLists
from benchmarks.timing import cpu_ns, in_turns, spread
from madl import core
from madl.core.skiplist import SkipList
from tests.linear import LinearFirstFit

COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
UNIT = 512
QUERIES = 4096
MOST_NODES = "2.5 log2 n + 3"
MADL, LINEAR = "madl's skip list", "linear first fit"


class Index(Protocol):
    """Free blocks."""

    def find(self, nbytes: int) -> int:
        """Return the offset of a block that fits."""

    def carve_found(self, nbytes: int) -> None:
        """Take a part of what was found."""

    def put(self, offset: int, nbytes: int) -> None:
        """Add a block."""


def indexes() -> tuple[dict[str, Callable[[], Index]], list[str]]:
    """Return what makes each index, and what is missing."""
    makers: dict[str, Callable[[], Index]] = {
        MADL: SkipList,
        LINEAR: LinearFirstFit,
        "two sorted lists, bisect": TwoSortedLists.bisected,
    }
    try:
        sorted_list = importlib.import_module("sortedcontainers").SortedList
    except ImportError as error:
        return makers, [f"sortedcontainers: not measured: {error}"]
    makers["two sortedcontainers lists"] = lambda: TwoSortedLists(sorted_list)
    return makers, []


def fill(index: Index, count: int) -> None:
    """Add ``count`` free blocks, each one unit larger than the one below it."""
    blocks = [(i * i * UNIT, i * UNIT) for i in range(1, count + 1)]
    if isinstance(index, SkipList):
        # As in an aged pool: neighbours in the order are none in memory. The lists
        # hold their blocks in order whatever comes first, only slower.
        random.Random(count).shuffle(blocks)
    for offset, nbytes in blocks:
        index.put(offset, nbytes)


def searching(index: Index, sizes: list[int]) -> Callable[[int], None]:
    """Return a loop of searches."""

    def search(count: int) -> None:
        find = index.find
        for nbytes in sizes[:count]:
            find(nbytes)

    return search


def pairing(index: Index, sizes: list[int]) -> Callable[[int], None]:
    """Return a loop in which a whole block goes and comes back."""

    def pair(count: int) -> None:
        find, carve_found, put = index.find, index.carve_found, index.put
        for nbytes in sizes[:count]:
            offset = find(nbytes)
            carve_found(nbytes)
            put(offset, nbytes)

    return pair


def run(*, quick: bool) -> Answer:
    """Measure every index at every number of blocks."""
    makers, notes = indexes()
    rounds = 7 if quick else 9
    counts = COUNTS[:-1] if quick else COUNTS
    at = {count: _at(makers, count, rounds) for count in counts}
    visits = {count: _visits(count) for count in COUNTS}
    names = [f"{name}, {what}" for name in makers for what in ("search", "pair")]
    rows: list[Row] = [
        (name, *(spread(at[count][name]) for count in counts)) for name in names
    ]
    nodes: list[Row] = [
        ("nodes visited on average", *visits.values()),
        (f"promised at most: {MOST_NODES}", *map(most_nodes, COUNTS)),
    ]
    columns = ("free blocks", *(f"{count:,}" for count in COUNTS))
    notes += [
        "Sizes rise with offsets, every size is asked for equally often. A pair "
        "searches, takes a whole block out and puts it back.",
        "CPU time of the thread. Growth compares the least of the rounds: what other "
        "programs leave of a shared cache decides the median at 100,000 blocks.",
    ]
    return Answer(
        "How does the cost of a search grow with the number of free blocks?",
        (
            Table(
                "ns, median (least-most)",
                columns[: len(counts) + 1],
                tuple(rows),
                is_plotted=True,
            ),
            Table("a count, the same on every machine", columns, tuple(nodes)),
        ),
        {
            f"nodes visited / ({MOST_NODES}), most": max(
                visits[count] / most_nodes(count) for count in COUNTS
            ),
            **(_compiled_figures(at) if core.IS_COMPILED else {}),
        },
        tuple(notes),
    )


def most_nodes(count: int) -> float:
    """Return the nodes that a search may visit on average."""
    return 2.5 * math.log2(count) + 3


def _sizes(count: int) -> list[int]:
    draw = random.Random(count + 1)
    return [draw.randint(1, count) * UNIT for _ in range(QUERIES)]


def _at(
    makers: dict[str, Callable[[], Index]], count: int, rounds: int
) -> dict[str, list[float]]:
    sizes = _sizes(count)
    loops: dict[str, Callable[[int], None]] = {}
    for name, make in makers.items():
        index = make()
        fill(index, count)
        loops[f"{name}, search"] = searching(index, sizes)
        loops[f"{name}, pair"] = pairing(index, sizes)
    measures: dict[str, Callable[[], float]] = {
        name: lambda loop=loop: _warm_ns(loop)  # type: ignore[misc]
        for name, loop in loops.items()
    }
    return in_turns(measures, rounds=rounds)


def _warm_ns(loop: Callable[[int], None]) -> float:
    """Return what a turn costs once the other contenders' data has left the cache."""
    cpu_ns(loop, lasting_ns=3_000_000, most=QUERIES)
    return cpu_ns(loop, lasting_ns=3_000_000, most=QUERIES)


def _visits(count: int) -> float:
    index = SkipList()
    fill(index, count)
    for nbytes in _sizes(count):
        index.find(nbytes)
    return index.visits / index.searches


def _compiled_figures(at: dict[int, dict[str, list[float]]]) -> dict[str, float]:
    def least(count: int, name: str) -> float:
        return min(at[count][name])

    search, pair = f"{MADL}, search", f"{MADL}, pair"
    linear = least(100_000, f"{LINEAR}, search")
    return {
        "search, 100 to 100,000 blocks": least(100_000, search) / least(100, search),
        "pair, 100 to 100,000 blocks": least(100_000, pair) / least(100, pair),
        "linear search over it, 100,000 blocks": linear / least(100_000, search),
        "ns of a search, 100,000 blocks": least(100_000, search),
        "ns of a pair, 100,000 blocks": least(100_000, pair),
    }
