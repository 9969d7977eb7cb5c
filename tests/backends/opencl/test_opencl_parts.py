"""Sub-buffers are kept with their buffer: the same place needs no new one."""

from typing import Any

import pytest

from madl import Pool
from madl.backends.opencl import OpenclBackend
from madl.backends.opencl.buffers import MOST_PARTS
from madl.integrations.pyopencl import PoolAllocator
from tests.backends.opencl.device import pyopencl_or_skip
from tests.backends.opencl.faults import FaultyCalls

cl = pyopencl_or_skip()
pytestmark = pytest.mark.opencl


def open_backend() -> tuple[OpenclBackend, FaultyCalls]:
    calls = FaultyCalls()
    return OpenclBackend("opencl:0", memory="buffer", _calls=calls), calls  # type: ignore[arg-type]  # in its place


def another_object_for(buffer: Any) -> Any:  # noqa: ANN401  # pyopencl has no types here
    return cl.Buffer.from_int_ptr(buffer.int_ptr)


def test_memory_that_is_handed_out_again_makes_no_sub_buffer() -> None:
    backend, calls = open_backend()
    with Pool(backend) as pool:
        allocate = PoolAllocator(pool)
        first = allocate(10_000)
        assert first is not None
        place = first.int_ptr
        del first
        calls.always_fail("sub_buffer")

        again = allocate(10_000)

        assert again is not None
        assert (again.int_ptr, again.size) == (place, 10_000)
        del again


def test_each_view_is_an_object_of_its_own() -> None:
    backend, _ = open_backend()
    reservation = backend.reserve(1 << 20)

    one, other = (backend.view(reservation, 4096, 512) for _ in range(2))

    assert one is not other
    assert one == other
    backend.release(reservation)


def test_another_size_at_the_same_offset_is_another_sub_buffer() -> None:
    backend, _ = open_backend()
    reservation = backend.reserve(1 << 20)

    views: list[Any] = [backend.view(reservation, 4096, n) for n in (512, 1024)]

    assert [one.size for one in views] == [512, 1024]
    backend.release(reservation)


def test_a_released_buffer_is_kept_by_no_sub_buffer() -> None:
    backend, _ = open_backend()
    reservation = backend.reserve(1 << 20)
    backend.view(reservation, 0, 512)
    buffer = another_object_for(reservation.native)

    backend.release(reservation)

    assert buffer.reference_count == 1


def test_no_more_than_a_bound_are_kept() -> None:
    backend, _ = open_backend()
    reservation = backend.reserve(16 << 20)
    for number in range(MOST_PARTS + 10):
        backend.view(reservation, number * 4096, 512)

    assert another_object_for(reservation.native).reference_count <= MOST_PARTS + 2
    backend.release(reservation)
