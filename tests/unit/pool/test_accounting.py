"""A pool's figures and snapshots, and that a broken invariant is seen."""

import functools
import json
import threading
import time

import pytest

from madl import Pool
from madl.errors import CorruptedPoolError
from madl.hotpath import BlockState, place_of
from madl.pool.allocate import parts_of
from madl.pool.stats import ArenaSnapshot, BlockSnapshot
from tests.fakes import FakeBackend
from tests.interruptions import comes_between

KIB = 1024
PAGE = 16 * KIB


@pytest.fixture
def pool() -> Pool:
    return Pool(FakeBackend())


def states(arena: ArenaSnapshot) -> list[tuple[str, int]]:
    return [(block.state, block.capacity_nbytes) for block in arena.blocks]


def test_a_new_pool_has_nothing(pool: Pool) -> None:
    stats = pool.stats()

    assert stats.device == "fake"
    assert (stats.committed_nbytes, stats.reserved_nbytes, stats.tags) == (0, 0, {})
    assert stats.fragmentation_ratio == 0


def test_live_is_what_was_asked_and_padding_the_rest(pool: Pool) -> None:
    held = [pool.allocate(1000), pool.allocate(1)]

    stats = pool.stats()

    assert (stats.live_nbytes, stats.padding_nbytes) == (1001, 24 + 511)
    assert stats.committed_nbytes == PAGE
    assert len(held) == 2


def test_the_high_water_mark_of_live_bytes_stays(pool: Pool) -> None:
    first = pool.allocate(1000)
    pool.allocate(5000).free()
    first.free()

    pool.allocate(2000)

    assert pool.stats().live_high_water_nbytes == 6000


def test_allocations_and_frees_are_counted(pool: Pool) -> None:
    held = [pool.allocate(100) for _ in range(5)]
    del held[:3]

    stats = pool.stats()

    assert (stats.allocation_count, stats.free_count) == (5, 3)


def test_only_what_no_bin_serves_is_a_miss(pool: Pool) -> None:
    for _ in range(10):
        pool.allocate(100).free()

    assert pool.stats().miss_count == 1


def test_searches_and_calls_are_counted(pool: Pool) -> None:
    held = [pool.allocate(100), pool.allocate(200)]

    stats = pool.stats()

    assert stats.search_steps > 0
    assert stats.backend_calls == 2
    assert len(held) == 2


def test_free_memory_in_pieces_is_fragmented(pool: Pool) -> None:
    held = [pool.allocate(4 * KIB) for _ in range(8)]
    del held[::2]

    stats = pool.stats()

    assert stats.largest_free_nbytes == 4 * KIB
    assert stats.fragmentation_ratio == 0.75


def test_binned_neighbours_count_as_one_free_piece(pool: Pool) -> None:
    wall = [pool.allocate(4 * KIB) for _ in range(4)]
    for memory in wall[:2]:
        memory.free()

    stats = pool.stats()

    assert stats.largest_free_nbytes == 8 * KIB
    assert stats.fragmentation_ratio == 0


def test_only_committed_memory_counts_as_free(pool: Pool) -> None:
    held = pool.allocate(PAGE)

    stats = pool.stats()

    assert (stats.largest_free_nbytes, stats.fragmentation_ratio) == (0, 0)
    assert held.nbytes == PAGE


def test_a_free_piece_ends_where_no_page_is_committed(pool: Pool) -> None:
    low, wall = pool.allocate(4 * PAGE), pool.allocate(PAGE)
    low.free()

    pool.trim(keep=3 * PAGE)

    assert pool.stats().largest_free_nbytes == 2 * PAGE
    assert wall.nbytes == PAGE


def test_figures_are_ready_for_json(pool: Pool) -> None:
    held = pool.allocate(100, tag="weights")

    figures = json.loads(json.dumps(pool.stats().as_dict()))

    assert figures["live_nbytes"] == held.nbytes
    assert figures["tags"]["weights"]["live_nbytes"] == held.nbytes


def test_a_snapshot_has_every_block_in_order(pool: Pool) -> None:
    held = [pool.allocate(1000, tag="weights"), pool.allocate(5000)]

    (arena,) = pool.snapshot().arenas

    assert arena.blocks[0] == BlockSnapshot(0, 1024, "live", 1000, "weights")
    assert arena.blocks[1] == BlockSnapshot(1024, 5120, "live", 5000, None)
    assert arena.blocks[2] == BlockSnapshot(6144, arena.nbytes - 6144, "free")
    assert len(held) == 2


def test_a_snapshot_tells_binned_blocks_from_free_ones(pool: Pool) -> None:
    memory, wall = pool.allocate(1000), pool.allocate(1000)
    memory.free()

    (arena,) = pool.snapshot().arenas

    assert states(arena)[:2] == [("binned", 1024), ("live", 1024)]
    assert wall.nbytes == 1000


def test_a_snapshot_has_the_committed_runs(pool: Pool) -> None:
    low, wall, high = (pool.allocate(n * PAGE) for n in (2, 1, 3))
    low.free()
    pool.trim()

    (arena,) = pool.snapshot().arenas

    assert arena.committed_runs == ((2 * PAGE, 4 * PAGE),)
    assert arena.page_nbytes == PAGE
    assert arena.address == wall.address - 2 * PAGE
    assert high.nbytes == 3 * PAGE


def test_a_snapshot_of_segments_is_committed_whole() -> None:
    pool = Pool(FakeBackend(commits=False), limit=512 * KIB)
    held = pool.allocate(100)

    (arena,) = pool.snapshot().arenas

    assert arena.committed_runs == ((0, arena.nbytes),)
    assert held.nbytes == 100


def test_others_may_use_new_tags_while_figures_are_made() -> None:
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        pool = Pool(FakeBackend())
        use_tag(pool, "known")
        use_new = functools.partial(use_tag, pool, "new")
        is_inside = comes_between(pool.stats, moments, use_new)
        assert not parts_of(pool).shared.was_interrupted

    assert moments > 20


def use_tag(pool: Pool, tag: str) -> None:
    pool.allocate(100, tag=tag).free()


def test_check_sees_a_block_whose_place_is_free_too(pool: Pool) -> None:
    memory = pool.allocate(1000)
    placed = place_of(memory)
    assert placed is not None
    arena, offset, capacity = placed
    assert arena is not None
    arena.blocks.free(offset, capacity)

    with pytest.raises(CorruptedPoolError) as caught:
        pool.check()

    assert caught.value.what == "blocks of an arena without gap or overlap"
    arena.blocks.take(offset, capacity)
    pool.check()


def test_check_sees_a_place_that_belongs_to_nobody(pool: Pool) -> None:
    memory = pool.allocate(1000)
    placed = place_of(memory)
    assert placed is not None
    arena = placed[0]
    assert arena is not None
    arena.blocks.take(2048, 512)

    with pytest.raises(CorruptedPoolError) as caught:
        pool.check()

    assert caught.value.args == (
        "blocks of an arena without gap or overlap",
        2560,
        2048,
    )
    arena.blocks.free(2048, 512)


def test_check_knows_that_what_is_placed_apart_is_placed_without_the_lock(
    pool: Pool,
) -> None:
    arena, _ = parts_of(pool).dedicated.place(8192, 0)  # its block is what comes next

    pool.check()

    assert pool.snapshot().arenas[-1].nbytes == arena.nbytes
    parts_of(pool).dedicated.release(arena)


def test_whoever_frees_may_wait_for_the_lock_that_check_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As does a finalizer that allocates, in the middle of a free of a tagged block."""
    is_looking, is_freeing = threading.Event(), threading.Event()

    watched = Pool(FakeBackend())
    streams = parts_of(watched).streams
    states = streams.states

    def looked_at() -> list[BlockState]:
        if is_freeing.is_set():
            is_looking.set()
            time.sleep(0.01)  # for the other to come to the lock
        return states()

    class Allocating:
        def allocated(self, *_: object) -> int:
            return 0

        def freed(self, allocation_id: int) -> None:
            monkeypatch.setattr("madl.pool.tracking.listeners", [])
            is_freeing.set()
            assert is_looking.wait(10)
            watched.allocate(12_345).free()  # misses, so it takes the lock

    monkeypatch.setattr(streams, "states", looked_at)
    monkeypatch.setattr("madl.pool.tracking.listeners", [Allocating()])
    memory = watched.allocate(100, tag="a")
    thread = threading.Thread(target=memory.free)
    thread.start()
    assert is_freeing.wait(10)

    watched.check()

    thread.join()
    assert watched.stats().live_nbytes == 0
