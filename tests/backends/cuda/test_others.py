"""Other libraries work with the same driver, context and streams."""

import gc

import pytest

from madl.backends.cuda import CudaBackend
from tests.backends.cuda.content import PAGE, read

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")


def test_a_stream_of_cuda_core_is_a_stream() -> None:
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    backend = CudaBackend(0)
    reservation = backend.reserve(PAGE)
    backend.commit(reservation, 0, PAGE)

    backend.fill(reservation, 0, PAGE, 3, stream=stream)
    backend.synchronize(backend.record(stream))

    assert read(backend, reservation) == b"\x03" * 8
    assert backend.stream_key(stream) == int(stream.handle)
    backend.release(reservation)


def test_a_buffer_of_cuda_core_is_over_memory_of_madl() -> None:
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    backend = CudaBackend(0)
    reservation = backend.reserve(PAGE)
    backend.commit(reservation, 0, PAGE)
    assert reservation.address is not None

    buffer = core.Buffer.from_handle(reservation.address, 1024, owner=reservation)
    other = device.allocate(1024, stream=stream)
    backend.fill(reservation, 0, 1024, 5)
    other.copy_from(buffer, stream=stream)
    backend.fill(reservation, 0, 1024, 0)
    buffer.copy_from(other, stream=stream)
    stream.sync()

    assert read(backend, reservation) == b"\x05" * 8
    assert buffer.__dlpack_device__() == (2, 0)
    other.close(stream)
    stream.sync()
    backend.release(reservation)


def test_numba_copies_to_memory_of_madl() -> None:
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    numpy = pytest.importorskip("numpy")
    backend = CudaBackend(0)
    reservation = backend.reserve(PAGE)
    backend.commit(reservation, 0, PAGE)

    class Interface:
        __cuda_array_interface__ = {  # noqa: RUF012  # what the protocol asks for
            "shape": (16,),
            "typestr": "<f8",
            "data": (reservation.address, False),
            "version": 3,
        }

    array = cuda.as_cuda_array(Interface())
    array.copy_to_device(numpy.arange(16.0))

    found = numpy.frombuffer(read(backend, reservation, 0, 128))
    assert (found == numpy.arange(16.0)).all()
    stream = cuda.stream()
    backend.synchronize(backend.record(stream))
    del array, stream
    gc.collect()
    cuda.current_context().deallocations.clear()
    backend.release(reservation)
