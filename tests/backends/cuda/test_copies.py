"""Copies and fills: between devices, and with arguments that make no sense."""

import os

import pytest

from madl import Pool
from madl.backends.cuda import CudaBackend
from tests.backends.cuda.content import MIB, PAGE, read
from tests.backends.cuda.emulator import Emulator
from tests.backends.cuda.test_streams import make_stream


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend(0)


def test_pinned_memory_is_copied_to_the_device_and_back() -> None:
    device, host = CudaBackend(0), CudaBackend(0, memory="pinned")
    there, here = device.reserve(PAGE), host.reserve(MIB)
    device.commit(there, 0, PAGE)
    content = os.urandom(1000)
    host.copy_from_host(here, 8, memoryview(content))

    device.copy_from_device(host, here, 8, there, 16, 1000)
    host.copy_from_device(device, there, 16, here, 4000, 1000)

    assert read(host, here, 4000, 1000) == content
    device.release(there)
    host.release(here)


def test_devices_copy_to_each_other(emulator: Emulator) -> None:
    first, second = CudaBackend(0), CudaBackend(1, memory="segments")
    source, target = first.reserve(PAGE), second.reserve(MIB)
    first.commit(source, 0, PAGE)
    first.fill(source, 0, PAGE, 8)

    second.copy_from_device(first, source, 0, target, 16, 64)

    assert read(second, target, 16, 64) == b"\x08" * 64
    first.release(source)
    second.release(target)


@pytest.mark.parametrize("of", ["pages", "segments", "async", "managed", "pinned"])
@pytest.mark.parametrize("to", ["pages", "segments", "async", "managed", "pinned"])
def test_pools_of_a_device_copy_to_each_other(of: str, to: str) -> None:
    first, second = CudaBackend(0, memory=of), CudaBackend(0, memory=to)
    content = os.urandom(3 * MIB)

    with Pool(first) as there, Pool(second) as here:
        source, target = there.allocate(len(content)), here.allocate(len(content) + 8)
        source.copy_from(content)
        target.fill(0)
        target[3:-5].copy_from(source)

        assert target.tobytes() == bytes(3) + content + bytes(5)
        source.free()
        target.free()


def test_pools_of_two_devices_copy_without_the_host(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it went through the host")

    with Pool("cuda:0") as there, Pool("cuda:1") as here:
        source, target = there.allocate(MIB), here.allocate(MIB)
        source.fill(7)
        with monkeypatch.context() as patch:
            for name in ("copy_to_host", "copy_from_host"):
                patch.setattr(CudaBackend, name, fail)
            target.copy_from(source)

        assert target.tobytes() == b"\7" * MIB
        source.free()
        target.free()


def test_a_copy_from_another_device_is_behind_what_is_queued_there(
    emulator: Emulator,
) -> None:
    with Pool("cuda:0") as there, Pool("cuda:1") as here:
        stream = make_stream()
        source, other = (there.allocate(64, stream=stream) for _ in range(2))
        target = here.allocate(64)
        source.fill(1)
        other.fill(2)
        emulator.set(lazy=1)
        source.copy_from(other, stream=stream)

        target.copy_from(source)

        assert target.tobytes() == b"\2" * 64
        for memory in (source, other, target):
            memory.free()


@pytest.mark.parametrize("range_", [(-1, 8), (PAGE - 4, 8), (0, PAGE + 1)])
def test_a_copy_beyond_the_reservation_is_a_value_error(
    range_: tuple[int, int], backend: CudaBackend
) -> None:
    reservation = backend.reserve(PAGE)
    offset, nbytes = range_

    with pytest.raises(ValueError, match="must lie inside the reservation"):
        backend.fill(reservation, offset, nbytes, 0)

    backend.release(reservation)


def test_a_read_only_destination_is_a_value_error(backend: CudaBackend) -> None:
    reservation = backend.reserve(PAGE)

    with pytest.raises(ValueError, match="must be writable"):
        backend.copy_to_host(reservation, 0, memoryview(os.urandom(8)))

    backend.release(reservation)


def test_a_fill_of_no_byte_is_a_value_error(backend: CudaBackend) -> None:
    reservation = backend.reserve(PAGE)

    with pytest.raises(ValueError, match="0 to 255, got 256"):
        backend.fill(reservation, 0, 8, 256)

    backend.release(reservation)


def test_nothing_is_copied_without_a_call(
    backend: CudaBackend, emulator: Emulator
) -> None:
    reservation = backend.reserve(PAGE)
    calls = emulator.calls()

    backend.copy_from_host(reservation, PAGE, memoryview(b""))
    backend.fill(reservation, 0, 0, 1)

    assert emulator.calls() == calls
    backend.release(reservation)
