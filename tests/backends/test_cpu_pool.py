"""A pool over real memory: content, residency and faults while pages are recycled."""

import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Capability
from madl.errors import MissingCapabilityError
from madl.pool.allocate import parts_of
from tests.backends.host import (
    KIB,
    MIB,
    OS_PAGE,
    PAGE,
    fault_count,
    kernel_sum,
    read,
    resident_nbytes,
    write,
)
from tests.backends.walk import QuietWalk, Walk, open_pool, steps

SLACK_NBYTES = 8 * MIB


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_lazy", [True, False])
@pytest.mark.parametrize("page_nbytes", [64 * KIB, PAGE])
def test_recycling_keeps_every_live_block_intact(
    page_nbytes: int, is_lazy: bool, seed: int
) -> None:
    pool = open_pool(page_nbytes, is_lazy=is_lazy)
    walk = Walk(pool, seed)

    for step in steps(walk, 4000):
        if step % 1000 == 0:
            pool.trim(pool.stats().committed_nbytes * 3 // 4)
            for memory, pattern in walk.live:
                walk.verify(memory, pattern)

    assert pool.stats().recycled_pages > 0
    walk.finish()


@pytest.mark.parametrize("is_lazy", [True, False])
@pytest.mark.parametrize("page_nbytes", [OS_PAGE, 64 * KIB, PAGE])
def test_what_is_resident_is_committed(page_nbytes: int, is_lazy: bool) -> None:
    pool = open_pool(page_nbytes, is_lazy=is_lazy)
    walk = Walk(pool, 7)
    excess = []

    for step in steps(walk, 2000):
        if step % 500 == 0:
            pool.trim(pool.stats().live_nbytes)
        # Neighbours may be one VMA, so only the sum over all of them is exact.
        reservations = [
            arena.reservation for arena in parts_of(pool).growth.all_arenas()
        ]
        resident = kernel_sum(reservations, "Rss")
        excess.append(resident - pool.stats().committed_nbytes)

    assert max(excess) <= 0
    walk.finish()


@pytest.mark.parametrize("page_nbytes", [64 * KIB, PAGE])
def test_a_pool_takes_little_beside_what_is_committed(page_nbytes: int) -> None:
    pool = open_pool(page_nbytes)
    walk = Walk(pool, 7)
    before = resident_nbytes()
    excess = []

    for _ in steps(walk, 2000):
        resident = resident_nbytes() - before
        excess.append(resident - pool.stats().committed_nbytes)

    assert max(excess) <= SLACK_NBYTES
    walk.finish()


@pytest.mark.parametrize("page_nbytes", [64 * KIB, PAGE])
def test_trim_returns_everything_to_the_system(page_nbytes: int) -> None:
    pool = open_pool(page_nbytes)
    walk = Walk(pool, 3)
    before = resident_nbytes()
    for _ in steps(walk, 1000):
        pass

    walk.finish()
    pool.trim()

    assert pool.stats().committed_nbytes == 0
    assert resident_nbytes() - before < SLACK_NBYTES


def faults_of_a_loop(page_nbytes: int, seed: int, *, recycle: bool) -> tuple[int, int]:
    """Return the faults of a loop, and the OS pages that were recycled in it."""
    pool = open_pool(page_nbytes, recycle=recycle)
    walk = QuietWalk(pool, seed)
    before = fault_count()
    for _ in steps(walk, 6000):
        pass
    faults = fault_count() - before
    recycled_nbytes = pool.stats().recycled_pages * page_nbytes
    walk.finish()
    return faults, recycled_nbytes // OS_PAGE


@pytest.mark.parametrize("seed", range(3))
def test_recycling_costs_no_more_faults_than_new_memory(seed: int) -> None:
    without, _ = faults_of_a_loop(64 * KIB, seed, recycle=False)
    faults, recycled = faults_of_a_loop(64 * KIB, seed, recycle=True)

    assert faults <= 1.2 * without
    assert recycled > 5 * faults  # what it would have been without remap


def test_a_forked_child_writes_to_its_own_copy() -> None:
    pool = open_pool(64 * KIB)
    walk = Walk(pool, 5)
    for _ in steps(walk, 300):
        pass
    kept = [read(memory.address, memory.nbytes) for memory, _ in walk.live]

    child = os.fork()
    if child == 0:
        status = 1
        try:
            seen = [read(memory.address, memory.nbytes) for memory, _ in walk.live]
            for memory, _ in walk.live[::2]:
                write(memory.address, 255, memory.nbytes)
                memory.free()
            del walk.live[::2]
            for _ in steps(walk, 300):
                pass
            walk.finish()
            status = 0 if seen == kept else 2
        finally:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [read(memory.address, memory.nbytes) for memory, _ in walk.live] == kept
    walk.finish()


def test_small_pages_with_huge_ones_are_refused() -> None:
    backend = CpuBackend()
    if Capability.HUGE_PAGES not in backend.capabilities:
        pytest.skip("this kernel has no huge pages")

    with pytest.raises(MissingCapabilityError, match=r"for pages of 64\.0 KiB"):
        Pool(backend, page_size="64 KiB", huge_pages=True)
