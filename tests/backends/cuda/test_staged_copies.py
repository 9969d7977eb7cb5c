"""Large copies of pageable host memory go through two pinned blocks, which go back."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

import madl
from madl import BackendError, Memory, Pool
from madl.memory import staging
from madl.memory.staging import PIECE_NBYTES, SMALLEST_NBYTES
from madl.pool.allocate import parts_of
from tests.backends.cuda.content import MIB
from tests.backends.cuda.emulator import ILLEGAL_ADDRESS, OUT_OF_MEMORY, Emulator
from tests.backends.cuda.test_foreign import Lent
from tests.backends.cuda.test_streams import make_stream

NBYTES = SMALLEST_NBYTES + PIECE_NBYTES // 2 + 8
"""The last piece is no whole one."""
CONTENT = os.urandom(NBYTES)


@pytest.fixture(autouse=True)
def _gives_pinned_memory_back() -> Iterator[None]:
    yield
    for pool in staging._pools.values():
        assert pool.stats().live_nbytes == 0
        pool.trim()


@pytest.fixture
def pageable(emulator: Emulator) -> Callable[[], int]:
    """Return what says how many bytes of pageable memory were copied in streams."""
    before = emulator.pageable_nbytes()
    return lambda: emulator.pageable_nbytes() - before


SIDES: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.zeros(NBYTES, np.uint8),
    "cpu": lambda: Pool("cpu").allocate(NBYTES),
}


@pytest.mark.parametrize("kind", ["cuda:0", "lent"])
@pytest.mark.parametrize("host", SIDES.values(), ids=SIDES)
def test_a_large_copy_arrives_and_comes_back(
    host: Callable[[], Any], kind: str
) -> None:
    memory = Pool("cuda:0").allocate(NBYTES)
    device = Lent(memory) if kind == "lent" else memory
    source, target = host(), host()
    madl.copy(source, CONTENT)

    madl.copy(device, source)
    madl.copy(target, device)

    assert bytes(np.asarray(target)) == CONTENT


def test_streams_copy_only_from_and_to_pinned_memory(
    pageable: Callable[[], int],
) -> None:
    memory = Pool("cuda:0").allocate(NBYTES)

    memory.copy_from(CONTENT)
    found = memory.tobytes()

    assert found == CONTENT
    assert pageable() == 0


def test_a_small_copy_goes_to_the_driver_whole(pageable: Callable[[], int]) -> None:
    memory = Pool("cuda:0").allocate(NBYTES)

    memory[: SMALLEST_NBYTES - 1].copy_from(CONTENT[: SMALLEST_NBYTES - 1])

    assert pageable() == SMALLEST_NBYTES - 1


@pytest.mark.parametrize("is_seen_by_numpy", [False, True])
def test_pinned_memory_is_copied_as_it_is(
    is_seen_by_numpy: bool, emulator: Emulator, pageable: Callable[[], int]
) -> None:
    memory, pinned = Pool("cuda:0").allocate(NBYTES), Pool("cuda_pinned:0")
    source = pinned.allocate(NBYTES)
    source.memoryview()[:] = CONTENT
    blocks = emulator.count("host_blocks")
    stream = make_stream()

    given = source.as_array("uint8") if is_seen_by_numpy else source
    madl.copy(memory, given, stream=stream)
    madl.copy(given, memory)

    assert emulator.count("host_blocks") == blocks
    assert source.tobytes() == CONTENT
    assert pageable() == 0


def test_two_pools_of_a_device_copy_without_the_host(
    pageable: Callable[[], int],
) -> None:
    source, target = Pool("cuda:0").allocate(MIB), Pool("cuda:0").allocate(MIB)
    stream = make_stream()
    source.fill(7)

    madl.copy(target, source, stream=stream)
    madl.copy(source, target)

    assert pageable() == 0
    assert target.tobytes() == b"\7" * MIB


def test_in_a_stream_the_bytes_of_the_host_are_read_on_return(
    emulator: Emulator,
) -> None:
    stream = make_stream()
    memory = Pool("cuda:0").allocate(NBYTES, stream=stream)
    source = np.frombuffer(CONTENT, np.uint8).copy()
    emulator.set(lazy=1)  # what is queued is done when somebody waits for its stream

    madl.copy(memory, source, stream=stream)
    source[:] = 0

    assert memory.tobytes() == CONTENT


def test_a_copy_is_behind_what_is_queued_in_its_stream(emulator: Emulator) -> None:
    stream = make_stream()
    source, target = (Pool("cuda:0").allocate(NBYTES, stream=stream) for _ in range(2))
    source.copy_from(CONTENT)
    emulator.set(lazy=1)
    found = bytearray(NBYTES)
    madl.copy(target, source, stream=stream)

    madl.copy(found, target)

    assert found == CONTENT


def test_a_graph_captures_a_direct_copy(emulator: Emulator) -> None:
    stream = make_stream()
    memory = Pool("cuda:0").allocate(NBYTES, stream=stream)
    backend: Any = parts_of(memory.pool).backend.backend
    device = backend._device
    blocks = emulator.count("host_blocks")

    with device.current():
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        driver.cuStreamBeginCapture(stream, mode)
        madl.copy(memory, CONTENT, stream=stream)
        driver.cuStreamEndCapture(stream)

    assert emulator.count("host_blocks") == blocks


def test_without_pinned_memory_it_goes_directly(
    emulator: Emulator, pageable: Callable[[], int]
) -> None:
    memory = Pool("cuda:0").allocate(NBYTES)
    emulator.set(host=0)

    memory.copy_from(CONTENT)

    assert pageable() == NBYTES
    assert memory.tobytes() == CONTENT


def test_no_tag_counts_the_blocks() -> None:
    memory = Pool("cuda:0").allocate(NBYTES)

    with madl.tag("small", limit="1 MiB"):
        memory.copy_from(CONTENT)

    assert memory.tobytes() == CONTENT


def copy_both_ways(memory: Memory) -> bytes:
    memory.copy_from(CONTENT[: memory.nbytes])
    return memory.tobytes()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("status", [OUT_OF_MEMORY, ILLEGAL_ADDRESS])
def test_each_call_may_fail_and_the_blocks_go_back(
    status: int, after: bool, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_NBYTES", 1 << 16)
    monkeypatch.setattr(staging, "SMALLEST_NBYTES", 1 << 18)
    memory = Pool("cuda:0").allocate((1 << 18) + 8)
    copy_both_ways(memory)
    before = emulator.calls()
    copy_both_ways(memory)
    calls, failures = emulator.calls() - before, 0
    emulator.set(lazy=1)
    for number in range(1, calls + 1):
        emulator.fail(number, status, after=after)
        try:
            copy_both_ways(memory)
        except BackendError:
            failures += 1
        emulator.recover()
        (pool,) = staging._pools.values()
        pool.check()
        assert pool.stats().live_nbytes == 0

        found = copy_both_ways(memory)  # whatever happened: it goes on

        assert found == CONTENT[: memory.nbytes]
    assert failures > calls / 3
