"""Copies and fills: between devices, and with arguments that make no sense."""

import os

import pytest

from madl.backends.cuda import CudaBackend
from tests.backends.cuda.content import MIB, PAGE, read
from tests.backends.cuda.emulator import Emulator


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
