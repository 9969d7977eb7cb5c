"""CUDA streams, whoever made them: what is queued is waited for, and only that."""

import ctypes
import gc
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from cuda.bindings import driver

from madl.backends.cuda import CudaBackend
from madl.backends.cuda.streams import handle_of
from tests.backends.cuda.content import PAGE
from tests.backends.cuda.emulator import LAUNCH_FAILED, Emulator

NON_BLOCKING = 1


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend(0)


def make_stream(index: int = 0) -> int:
    """Return the handle of a new stream of a device."""
    with CudaBackend(index)._device.current():
        status, stream = driver.cuStreamCreate(NON_BLOCKING)
    assert int(status) == 0
    return int(stream)


class WithMethod:
    """A stream as cuda.core makes them."""

    def __init__(self, handle: int) -> None:
        self.handle = "never asked for"
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


MAKERS: dict[str, Callable[[int], object]] = {
    "int": lambda handle: handle,
    "cuda.core": WithMethod,
    "pair": lambda handle: SimpleNamespace(__cuda_stream__=(0, handle)),
    "torch": lambda handle: SimpleNamespace(cuda_stream=handle),
    "cupy": lambda handle: SimpleNamespace(ptr=handle),
    "numba": lambda handle: SimpleNamespace(handle=ctypes.c_void_p(handle)),
    "numba and cuda-bindings": lambda handle: SimpleNamespace(
        handle=driver.CUstream(handle)
    ),
    "cuda.bindings": driver.CUstream,
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_a_stream_is_known_whoever_made_it(
    maker: Callable[[int], object], backend: CudaBackend
) -> None:
    handle = make_stream()

    assert handle_of(maker(handle)) == handle
    assert backend.stream_key(maker(handle)) == backend.stream_key(handle)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_0_and_1_are_the_legacy_default_stream(
    maker: Callable[[int], object],
) -> None:
    assert handle_of(maker(0)) == handle_of(maker(1)) == 1


@pytest.mark.parametrize("wrong", [True, -1, "0", 1.0, object(), [0]])
def test_what_is_no_stream_is_a_type_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="stream must be an int handle or a stream of"):
        handle_of(wrong)


def test_the_per_thread_default_stream_is_refused(backend: CudaBackend) -> None:
    with pytest.raises(ValueError, match="another one in each thread"):
        backend.record(2)


def test_a_stream_of_another_device_is_a_value_error(
    backend: CudaBackend, emulator: Emulator
) -> None:
    stream = make_stream(1)

    with pytest.raises(ValueError, match="does not belong to the primary context") as e:
        backend.stream_key(stream)

    assert "cuda:0" in str(e.value)


def test_a_copy_in_a_stream_is_done_when_the_stream_is(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    stream, found = make_stream(), bytearray(8)
    reservation = backend.reserve(PAGE)
    backend.commit(reservation, 0, PAGE)
    backend.fill(reservation, 0, PAGE, 4, stream=stream)
    backend.copy_to_host(reservation, 0, memoryview(found), stream=stream)
    event = backend.record(stream)

    assert not backend.is_done(event)
    assert found == bytes(8)
    backend.synchronize(event)
    assert backend.is_done(event)
    assert found == b"\x04" * 8
    backend.release(reservation)


def test_what_has_no_stream_is_done_on_return(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    source, target = backend.reserve(PAGE), backend.reserve(PAGE)
    for reservation in (source, target):
        backend.commit(reservation, 0, PAGE)

    backend.fill(source, 0, PAGE, 6)
    backend.copy_inside(source, 0, target, 0, PAGE)

    # By a stream that waits for no other one, so that it sees what is there.
    stream, found = make_stream(), bytearray(8)
    backend.copy_to_host(target, 0, memoryview(found), stream=stream)
    backend.synchronize(backend.record(stream))
    assert found == b"\x06" * 8
    backend.release(source)
    backend.release(target)


def test_a_stream_that_does_not_wait_sees_the_old_bytes(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    writer, reader, found = make_stream(), make_stream(), bytearray(8)
    reservation = backend.reserve(PAGE)
    backend.commit(reservation, 0, PAGE)
    backend.fill(reservation, 0, PAGE, 1)
    backend.fill(reservation, 0, PAGE, 2, stream=writer)

    backend.copy_to_host(reservation, 0, memoryview(found), stream=reader)
    backend.synchronize(backend.record(reader))
    assert found == b"\x01" * 8

    backend.wait(reader, backend.record(writer))
    backend.copy_to_host(reservation, 0, memoryview(found), stream=reader)
    backend.synchronize(backend.record(reader))
    assert found == b"\x02" * 8
    backend.release(reservation)


def test_memory_that_moves_under_queued_work_is_seen(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    stream = make_stream()
    reservation = backend.reserve(2 * PAGE)
    backend.commit(reservation, 0, PAGE)
    backend.fill(reservation, 0, PAGE, 1, stream=stream)
    event = backend.record(stream)

    backend.remap(reservation, 0, PAGE, PAGE)

    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        backend.synchronize(event)
    assert "broke the CUDA context" in caught.value.__notes__[0]
    emulator.mend()
    emulator.forget_misuses()
    backend.release(reservation)


def test_a_dropped_event_is_used_again(
    backend: CudaBackend, emulator: Emulator
) -> None:
    backend.record(1)
    gc.collect()
    before = emulator.count("events")

    for _ in range(100):
        backend.record(1)

    assert emulator.count("events") == before


def test_dropping_an_event_calls_nobody(
    backend: CudaBackend, emulator: Emulator
) -> None:
    event = backend.record(1)
    calls = emulator.calls()

    del event
    gc.collect()

    assert emulator.calls() == calls


def test_an_event_that_is_used_again_does_not_stand_for_the_old_position(
    backend: CudaBackend, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    first, second = make_stream(), make_stream()
    reservation = backend.reserve(PAGE)
    backend.commit(reservation, 0, PAGE)
    backend.fill(reservation, 0, PAGE, 0)
    backend.fill(reservation, 0, PAGE, 9, stream=first)
    backend.wait(second, backend.record(first))  # the event is dropped here
    backend.record(second)
    backend.record(second)

    found = bytearray(8)
    backend.copy_to_host(reservation, 0, memoryview(found), stream=second)
    backend.synchronize(backend.record(second))

    assert found == b"\x09" * 8
    backend.release(reservation)


def test_a_failed_query_is_an_error(backend: CudaBackend, emulator: Emulator) -> None:
    event = backend.record(1)
    emulator.fail_next("cuEventQuery", LAUNCH_FAILED)

    with pytest.raises(RuntimeError, match="cuEventQuery failed with 719"):
        backend.is_done(event)


@pytest.mark.parametrize("memory", ["pages", "segments", "pinned"])
def test_taking_memory_breaks_no_capture(memory: str) -> None:
    backend = CudaBackend(0, memory=memory)
    capturing, strict = make_stream(), driver.CUstreamCaptureMode(0)
    driver.cuThreadExchangeStreamCaptureMode(strict)
    with backend._device.current():
        driver.cuStreamBeginCapture(capturing, strict)
    assert backend.is_capturing(capturing)

    reservation = backend.reserve(2 * PAGE)
    if memory == "pages":
        backend.commit(reservation, 0, PAGE)
        backend.remap(reservation, 0, PAGE, PAGE)
        backend.decommit(reservation, PAGE, PAGE)
    backend.release(reservation)

    with backend._device.current():
        assert int(driver.cuStreamEndCapture(capturing)[0]) == 0
    assert not backend.is_capturing(capturing)
    assert driver.cuThreadExchangeStreamCaptureMode(strict)[1] == strict
