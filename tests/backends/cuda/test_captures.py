"""While a graph is captured: what a pool may still do, and what it refuses."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from madl import MissingCapabilityError, OutOfMemoryError, Pool
from madl.backends.cuda import CudaBackend
from tests.backends.cuda.content import MIB
from tests.backends.cuda.emulator import Emulator

driver: Any = pytest.importorskip("cuda.bindings.driver")

BLOCKING, NON_BLOCKING = 0, 1  # whether a stream waits for the legacy default one
LEGACY = 1


@pytest.fixture(params=["pages", "segments"])
def backend(request: pytest.FixtureRequest) -> CudaBackend:
    return CudaBackend(0, memory=request.param)


def make_stream(backend: CudaBackend, flags: int) -> int:
    with backend._device.current():
        status, stream = driver.cuStreamCreate(flags)
    assert int(status) == 0
    return int(stream)


@contextlib.contextmanager
def captured(backend: CudaBackend, stream: int) -> Iterator[None]:
    """Capture a stream, strictly; the capture must still be whole at the end."""
    strict = driver.CUstreamCaptureMode(0)
    with backend._device.current():
        driver.cuStreamBeginCapture(stream, strict)
    try:
        yield
    finally:
        with backend._device.current():
            status, _ = driver.cuStreamEndCapture(stream)
    assert int(status) == 0


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
@pytest.mark.parametrize("who", ["captured", "other", "default"])
def test_a_request_that_could_only_wait_is_refused(
    backend: CudaBackend, who: str, flags: int, emulator: Emulator
) -> None:
    one, other = (make_stream(backend, flags) for _ in range(2))
    stream = {"captured": one, "other": other, "default": None}[who]
    with Pool(backend, limit=8 * MIB) as pool:
        kept = pool.allocate(3 * MIB, stream=one)
        pool.allocate(3 * MIB, stream=other).free()
        emulator.set(lazy=1)

        with captured(backend, one), pytest.raises(MissingCapabilityError) as caught:
            pool.allocate(5 * MIB, stream=stream)

        assert str(caught.value) == (
            "cuda:0 has no way to wait for queued work while a graph is captured from "
            "a stream of the pool. Try: allocate before the capture, or raise the limit"
        )
        assert pool.stats().live_nbytes == 3 * MIB
        kept.free()


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_what_no_wait_would_help_is_out_of_memory(
    backend: CudaBackend, flags: int
) -> None:
    stream = make_stream(backend, flags)
    with Pool(backend, limit=8 * MIB) as pool:
        kept = pool.allocate(5 * MIB, stream=stream)

        with captured(backend, stream), pytest.raises(OutOfMemoryError):
            pool.allocate(5 * MIB, stream=stream)

        kept.free()


def test_the_legacy_stream_counts_as_captured_while_one_that_waits_for_it_is(
    backend: CudaBackend,
) -> None:
    blocking, free = (make_stream(backend, flag) for flag in (BLOCKING, NON_BLOCKING))

    with captured(backend, blocking):
        assert backend.is_capturing(None)
        assert backend.is_capturing(LEGACY)
        assert not backend.is_capturing(free)
    with captured(backend, free):
        assert not backend.is_capturing(None)
    assert not backend.is_capturing(None)


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_what_the_default_stream_freed_breaks_no_capture(
    backend: CudaBackend, flags: int, emulator: Emulator
) -> None:
    stream = make_stream(backend, flags)
    with Pool(backend, limit=32 * MIB) as pool:
        kept = [pool.allocate(MIB) for _ in range(4)]
        pool.allocate(MIB, stream=stream).free()
        emulator.set(lazy=1)

        with captured(backend, stream):
            for memory in kept:
                memory.free()
            for nbytes in (MIB, 3 * MIB, 5 * MIB):
                pool.allocate(nbytes, stream=stream).free()
                pool.allocate(nbytes).free()
            pool.stats()
            pool.check()

        pool.check()
