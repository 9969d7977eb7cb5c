"""The recorded traces: what a pool commits for them, and where it puts them."""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from madl import Memory, Pool
from madl.diagnostics import example_names, example_path, open_trace
from madl.diagnostics.replay import Replay, replay
from madl.pool.stats import PoolSnapshot
from tests.traces import MANIFEST, needs_recorded, path_of

GEOMEAN, WORST = 1.035, 1.11

NAMES = sorted(MANIFEST) or ["(none)"]


@cache
def replayed(name: str) -> Replay:
    return replay(open_trace(path_of(name)), Pool("sim"))


@needs_recorded
def test_there_are_thirteen_traces() -> None:
    assert len(NAMES) == 13


@needs_recorded
@pytest.mark.parametrize("name", NAMES)
def test_peak_live_is_that_of_the_manifest_to_the_byte(name: str) -> None:
    assert replayed(name).peak_live_nbytes == MANIFEST[name]["peak_live_bytes"]


@needs_recorded
@pytest.mark.parametrize("name", NAMES)
def test_no_trace_commits_much_more_than_it_needs(name: str) -> None:
    result = replayed(name)

    assert 1 <= result.committed_over_live <= WORST


@needs_recorded
def test_the_traces_commit_little_more_than_they_need() -> None:
    ratios = [replayed(name).committed_over_live for name in NAMES]

    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= GEOMEAN


@pytest.mark.parametrize("name", example_names())
def test_an_example_commits_little_more_than_it_needs(name: str) -> None:
    trace = open_trace(example_path(name))

    result = replay(trace, Pool("sim"))

    assert result.peak_live_nbytes == trace.peak_live_nbytes
    assert 1 <= result.committed_over_live <= WORST


class Spot(NamedTuple):
    """Where a live block lies."""

    arena: int
    offset: int
    nbytes: int


def spots(snapshot: PoolSnapshot) -> list[Spot]:
    return [
        Spot(number, block.offset, block.nbytes)
        for number, arena in enumerate(snapshot.arenas)
        for block in arena.blocks
        if block.state == "live"
    ]


def moments(
    name: str, pool: Pool, stop: int, is_moment: Callable[[int], bool]
) -> list[list[Spot]]:
    """Replay the start of an example; return all live blocks at some moments."""
    trace = open_trace(example_path(name))
    held: dict[int, Memory] = {}
    seen = []
    for done, operation in enumerate(trace.operations[:stop]):
        if operation < 0:
            del held[~operation]
        else:
            held[operation] = pool.allocate(trace.nbytes_of[operation])
        if is_moment(done):
            seen.append(spots(pool.snapshot()))
    return seen


@pytest.mark.parametrize("name", example_names())
def test_the_same_trace_gives_the_same_offsets_on_host_and_sim(name: str) -> None:
    host, sim = (
        moments(name, Pool(device), 30_000, lambda done: done % 197 == 0)
        for device in ("cpu", "sim")
    )

    assert len(host) > 100
    assert host == sim


def test_every_block_of_a_first_step_has_the_same_offset_on_host_and_sim() -> None:
    host, sim = (
        moments("gpt2-train", Pool(device), 1500, lambda _: True)
        for device in ("cpu", "sim")
    )

    assert host == sim


def test_an_address_on_the_host_is_the_arenas_and_the_offset() -> None:
    trace = open_trace(example_path("gpt2-train"))
    pool = Pool("cpu")
    held = [pool.allocate(nbytes) for nbytes in trace.nbytes_of[:2000]]

    snapshot = pool.snapshot()
    addresses = {
        arena.address + block.offset
        for arena in snapshot.arenas
        for block in arena.blocks
        if arena.address is not None and block.state == "live"
    }
    assert {memory.address for memory in held if memory.nbytes} == addresses
