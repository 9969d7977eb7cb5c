"""CUDA memory in one piece: of the device, pinned and managed."""

import ctypes

import pytest

from madl.backends.cpu import CpuBackend
from madl.backends.cuda import CudaBackend, madl_devices, madl_open
from madl.backends.protocol import Capability
from madl.errors import BackendCallError, MissingCapabilityError, OutOfMemoryError
from tests.backends.cuda.content import MIB, read
from tests.backends.cuda.emulator import INVALID_VALUE, Emulator
from tests.backends.cuda.test_streams import make_stream

ON_DEVICE = ("segments", "async", "managed")


@pytest.mark.parametrize("memory", ON_DEVICE)
def test_memory_is_taken_and_given_back(memory: str, emulator: Emulator) -> None:
    backend = CudaBackend(0, memory=memory)

    reservation = backend.reserve(3 * MIB)

    assert emulator.count("device_nbytes") == 3 * MIB
    backend.release(reservation)
    assert emulator.count("device_nbytes") == 0


@pytest.mark.parametrize("memory", ON_DEVICE)
def test_more_than_the_device_has_is_refused(memory: str, emulator: Emulator) -> None:
    emulator.set(memory=4 * MIB)

    with pytest.raises(OutOfMemoryError) as caught:
        CudaBackend(0, memory=memory).reserve(5 * MIB)

    assert caught.value.requested == 5 * MIB


def test_what_a_queue_has_not_allocated_yet_is_waited_for(emulator: Emulator) -> None:
    emulator.set(lazy=1)
    backend = CudaBackend(0, memory="async")

    reservation = backend.reserve(MIB)
    backend.fill(reservation, 0, MIB, 5)

    assert read(backend, reservation) == b"\x05" * 8
    backend.release(reservation)


def test_an_allocation_that_cannot_be_waited_for_is_given_back(
    emulator: Emulator,
) -> None:
    backend = CudaBackend(0, memory="async")
    emulator.fail_next("cuStreamSynchronize", INVALID_VALUE)

    with pytest.raises(BackendCallError):
        backend.reserve(MIB)

    assert emulator.failed() == "cuStreamSynchronize"
    assert emulator.count("allocations") == 0


def test_the_cpu_reads_pinned_memory(emulator: Emulator) -> None:
    backend = CudaBackend(0, memory="pinned")
    reservation = backend.reserve(MIB)
    assert reservation.address is not None

    backend.fill(reservation, 0, MIB, 7)

    assert ctypes.string_at(reservation.address, 4) == b"\x07" * 4
    assert emulator.count("device_nbytes") == 0
    assert emulator.count("host_nbytes") == MIB
    backend.release(reservation)


def test_pinned_memory_is_the_hosts() -> None:
    backend = CudaBackend(0, memory="pinned")

    assert backend.device == "cuda_pinned:0"
    assert Capability.PINNED | Capability.HOST_ACCESS in backend.capabilities
    assert backend.memory_info().total_nbytes == CpuBackend().memory_info().total_nbytes


def test_running_out_of_memory_to_pin_is_told_apart(emulator: Emulator) -> None:
    emulator.set(host=MIB)

    with pytest.raises(OutOfMemoryError) as caught:
        CudaBackend(0, memory="pinned").reserve(2 * MIB)

    assert str(caught.value) == (
        "cuda_pinned:0: cannot place 2.0 MiB; cuMemHostAlloc failed with 2 "
        "(CUDA_ERROR_OUT_OF_MEMORY: out of memory: of host memory that can be pinned, "
        "not of device memory). Try: free some memory, or end other programs that use "
        "this device."
    )


def test_the_cpu_keeps_off_managed_memory_that_it_cannot_share(
    emulator: Emulator,
) -> None:
    assert Capability.HOST_ACCESS in CudaBackend(0, memory="managed").capabilities

    emulator.set(concurrent=0)

    assert Capability.HOST_ACCESS not in CudaBackend(0, memory="managed").capabilities


def test_what_a_device_cannot_do_is_refused(emulator: Emulator) -> None:
    emulator.set(pools=0, managed=0)

    with pytest.raises(MissingCapabilityError, match="no stream-ordered allocation"):
        CudaBackend(0, memory="async")
    with pytest.raises(MissingCapabilityError, match="Try: cuda_pinned:0"):
        CudaBackend(0, memory="managed")
    assert madl_devices() == ["cuda:0", "cuda:1", "cuda_pinned:0", "cuda_pinned:1"]


def test_an_unknown_memory_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="got 'shared'"):
        CudaBackend(0, memory="shared")


def test_pages_are_not_committed_in_a_segment() -> None:
    backend = CudaBackend(0, memory="segments")
    reservation = backend.reserve(MIB)

    with pytest.raises(MissingCapabilityError, match="memory='pages'"):
        backend.commit(reservation, 0, MIB)

    backend.release(reservation)


@pytest.mark.parametrize("device", ["cuda:0", "cuda_pinned:0", "cuda_managed:0"])
def test_each_sort_is_a_device(device: str) -> None:
    backend = madl_open(device)

    assert backend is not None
    assert backend.device == device
    assert device in madl_devices()
    assert "taken by" in backend.describe()


def test_a_kind_alone_is_its_first_device() -> None:
    backend = madl_open("cuda_pinned")

    assert backend is not None
    assert backend.device == "cuda_pinned:0"
    assert madl_open("cpu") is None


@pytest.mark.parametrize("memory", ["segments", "async", "pinned", "managed"])
def test_a_release_waits_for_what_is_queued(memory: str, emulator: Emulator) -> None:
    backend, source = CudaBackend(0, memory=memory), CudaBackend(0, memory="segments")
    stream = make_stream()
    one, other = backend.reserve(MIB), source.reserve(MIB)
    emulator.set(lazy=1)
    source.copy_from_device(backend, one, 0, other, 0, MIB, stream=stream)

    backend.release(one)

    emulator.run()  # the copy would read what is not there any more
    source.synchronize(source.record(stream))
    source.release(other)
