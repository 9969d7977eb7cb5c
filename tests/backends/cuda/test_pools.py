"""Pools of CUDA memory: the same offsets as elsewhere, within their limit."""

import pytest

import madl
from madl import Pool
from madl.backends.cuda import CudaBackend
from madl.diagnostics import example_names, example_path, open_trace
from madl.diagnostics.replay import replay
from madl.errors import OutOfMemoryError
from tests.backends.cuda.content import MIB, PAGE
from tests.backends.cuda.emulator import Emulator
from tests.integration.test_replay_traces import moments

GIB = 1 << 30
MEMORIES = ("pages", "segments", "async", "pinned", "managed")


def test_a_device_is_opened_by_its_name() -> None:
    memory = madl.allocate("3 MiB", device="cuda:0")

    assert memory.device == "cuda:0"
    assert memory.address % 512 == 0
    memory.free()
    madl.default_pool("cuda:0").close()


def test_devices_are_listed() -> None:
    assert {"cuda:0", "cuda_pinned:0"} <= set(madl.devices())


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_copy_goes_there_and_back(memory: str) -> None:
    content = bytes(range(256)) * 300

    with Pool(CudaBackend(0, memory=memory)) as pool:
        block, other = pool.allocate(len(content)), pool.allocate(len(content))
        block.copy_from(content)
        other.copy_from(block)
        block.fill(0)

        assert other.tobytes() == content
        assert block.tobytes() == bytes(len(content))
        block.free()
        other.free()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_limit_bounds_what_is_committed(memory: str) -> None:
    with Pool(CudaBackend(0, memory=memory), limit="32 MiB") as pool:
        held = [pool.allocate(7 * MIB) for _ in range(4)]

        with pytest.raises(OutOfMemoryError):
            pool.allocate(7 * MIB)

        assert pool.stats().committed_nbytes <= 32 * MIB
        held.clear()
        pool.check()


def test_memory_that_lies_idle_in_a_hole_moves(emulator: Emulator) -> None:
    emulator.set(memory=8 * PAGE)

    with Pool("cuda:0") as pool:
        held = [pool.allocate(2 * PAGE) for _ in range(4)]
        held[0].free()
        held[2].free()
        whole = pool.allocate(4 * PAGE)
        whole.fill(1)

        assert pool.stats().recycled_pages == 4
        assert emulator.count("handles") == 8
        assert whole.tobytes() == b"\x01" * 4 * PAGE
        held.clear()
        whole.free()


@pytest.mark.parametrize("pooling", [True, False])
def test_a_pool_whose_pages_are_the_handles_takes_fewer(
    pooling: bool, emulator: Emulator
) -> None:
    backend = CudaBackend(0)
    backend.choose_pages(8 * PAGE)

    with Pool(backend, page_size=8 * PAGE, pooling=pooling) as pool:
        held = [pool.allocate(9 * PAGE) for _ in range(6)]
        held[1].free()
        held[3].free()
        held.append(pool.allocate(20 * PAGE))

        committed = pool.stats().committed_nbytes
        assert emulator.count("device_nbytes") == committed
        if pooling:
            assert emulator.count("handles") == committed // (8 * PAGE)
        held.clear()
        pool.trim()
        assert emulator.count("handles") == 0


@pytest.mark.parametrize("name", example_names())
def test_a_trace_has_the_offsets_that_it_has_on_sim(
    name: str, emulator: Emulator
) -> None:
    emulator.set(memory=64 * GIB)

    with Pool(CudaBackend(0)) as pool:
        cuda = moments(name, pool, 10_000, lambda done: done % 97 == 0)
    sim = moments(
        name, Pool("sim", page_size=PAGE), 10_000, lambda done: done % 97 == 0
    )

    assert len(cuda) > 30
    assert cuda == sim


@pytest.mark.parametrize("name", example_names())
def test_a_trace_commits_what_it_commits_on_sim(name: str, emulator: Emulator) -> None:
    emulator.set(memory=64 * GIB)
    trace = open_trace(example_path(name))

    with Pool(CudaBackend(0)) as pool:
        cuda = replay(trace, pool)
    sim = replay(open_trace(example_path(name)), Pool("sim", page_size=PAGE))

    assert cuda.peak_live_nbytes == sim.peak_live_nbytes
    assert cuda.peak_committed_nbytes == sim.peak_committed_nbytes
    assert cuda.stats.backend_calls == sim.stats.backend_calls


def test_a_trace_fits_the_device_that_sim_says_it_fits(emulator: Emulator) -> None:
    name = example_names()[0]
    sim = replay(open_trace(example_path(name)), Pool("sim", page_size=PAGE))
    emulator.set(memory=sim.peak_committed_nbytes)

    with Pool(CudaBackend(0)) as pool:
        cuda = replay(open_trace(example_path(name)), pool)

    assert cuda.peak_committed_nbytes == sim.peak_committed_nbytes
