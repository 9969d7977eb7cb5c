"""``madl.copy`` takes PyOpenCL's arrays on either side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import madl
from madl import NotContiguousError, Pool
from madl.backends.opencl import OpenclBackend
from tests.backends.opencl.device import pyopencl_or_skip

cl = pyopencl_or_skip()

import pyopencl.array as cla  # noqa: E402  # only where it is installed

pytestmark = pytest.mark.opencl

COUNT = 10_000


@pytest.fixture
def queue() -> object:
    return cl.CommandQueue(OpenclBackend().context)


@pytest.fixture(params=["buffer", "fine"])
def pool(request: pytest.FixtureRequest, queue: object) -> Iterator[Pool]:
    with Pool(OpenclBackend(queue, memory=request.param)) as pool:
        yield pool
        assert pool.stats().live_nbytes == 0
        pool.check()


def numbers() -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.arange(COUNT)


def test_an_array_is_copied_to_memory_of_its_device_and_back(
    pool: Pool, queue: object
) -> None:
    source, target = cla.to_device(queue, numbers()), cla.zeros(queue, COUNT, np.int64)
    memory = pool.allocate(source.nbytes)

    madl.copy(memory, source)
    madl.copy(target, memory)

    assert (target.get() == numbers()).all()


def test_an_array_is_copied_to_the_host_and_back(queue: object) -> None:
    source, target = cla.to_device(queue, numbers()), cla.zeros(queue, COUNT, np.int64)
    memory = madl.allocate(source.nbytes)

    madl.copy(memory, source)
    madl.copy(target, memory.as_array("int64"))

    assert (target.get() == numbers()).all()


def test_an_array_is_copied_to_an_array(queue: object) -> None:
    source, target = cla.to_device(queue, numbers()), cla.zeros(queue, COUNT, np.int64)

    madl.copy(target, source)

    assert (target.get() == numbers()).all()


def test_an_array_is_copied_to_another_context() -> None:
    context = cl.Context(OpenclBackend().context.devices)
    source = cla.to_device(cl.CommandQueue(context), numbers())
    memory = Pool("opencl:0").allocate(source.nbytes)

    madl.copy(memory, source)

    assert memory.tobytes() == numbers().tobytes()


def test_a_part_of_an_array_is_copied(queue: object) -> None:
    source = cla.to_device(queue, numbers())[100:200]
    memory = madl.allocate(source.nbytes)

    madl.copy(memory, source)

    assert memory.as_array("int64").tolist() == list(range(100, 200))


def test_work_that_is_queued_for_an_array_comes_first(queue: object) -> None:
    source = cla.to_device(queue, numbers())
    memory = madl.allocate(source.nbytes)
    for _ in range(50):
        source += 1

    madl.copy(memory, source)

    assert (memory.as_array("int64") == numbers() + 50).all()


def test_an_array_with_gaps_is_refused(queue: object) -> None:
    source = cla.to_device(queue, numbers())[::2]

    with pytest.raises(NotContiguousError):
        madl.copy(madl.allocate(source.nbytes), source)


def test_an_array_without_a_queue_is_refused(queue: object) -> None:
    source = cla.to_device(queue, numbers()).with_queue(None)

    with pytest.raises(ValueError, match="has no queue") as caught:
        madl.copy(madl.allocate(source.nbytes), source)

    assert str(caught.value) == (
        "the PyOpenCL array has no queue. Try: array.with_queue(queue)"
    )


def test_what_does_not_fit_an_array_is_refused(queue: object) -> None:
    with pytest.raises(ValueError, match="cannot copy 80000 bytes into 8"):
        madl.copy(cla.zeros(queue, 1, np.int64), numbers())
