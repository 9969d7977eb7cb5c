"""Two queues and one block: who may use it again, and when.

PyOpenCL's own pool hands a block out while work in another queue still reads it. What
a queue has not begun yet is held back by a gate, so nothing here is a race.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from madl import Pool
from madl.backends.opencl import OpenclBackend
from madl.integrations.pyopencl import PoolAllocator, memory_of, record_stream
from tests.backends.opencl.device import Gate, pyopencl_or_skip

cl = pyopencl_or_skip()

import pyopencl.array as cla  # noqa: E402  # only where it is installed

pytestmark = pytest.mark.opencl

COUNT = 4096


class Bench:
    """Two queues of one context, of which work in the second waits for a gate."""

    def __init__(self) -> None:
        context = OpenclBackend().context
        self.first = cl.CommandQueue(context)
        self.second = cl.CommandQueue(context)
        self.gate = Gate(context)
        self.result = cl.Buffer(context, cl.mem_flags.READ_WRITE, COUNT)

    def read_later(self, array: Any) -> None:  # noqa: ANN401  # of pyopencl
        """Queue the reading of an array in the second queue, behind the gate."""
        array.finish()
        self.gate.hold(self.second)
        cl.enqueue_copy(self.second, self.result, array.base_data, byte_count=COUNT)
        self.second.flush()

    def what_was_read(self) -> set[int]:
        """Open the gate and return the bytes that a queue has read."""
        self.gate.open()
        self.first.finish()
        self.second.finish()
        found = np.empty(COUNT, np.uint8)
        cl.enqueue_copy(self.second, found, self.result)
        return set(found.tolist())


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.gate.open()
    bench.second.finish()


def full(queue: Any, value: int, allocator: Callable[[int], Any]) -> Any:  # noqa: ANN401  # of pyopencl
    array = cla.empty(queue, COUNT, np.uint8, allocator=allocator)
    array.fill(value)
    return array


def test_pyopencls_own_pool_hands_out_what_another_queue_still_reads(
    bench: Bench,
) -> None:
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(bench.first))
    array = full(bench.first, 1, pool)
    bench.read_later(array)
    del array

    again = full(bench.first, 2, pool)
    again.finish()

    assert bench.what_was_read() == {2}, "pyopencl has mended its pool: tell the docs"


def test_one_queue_uses_a_freed_block_again_at_once(bench: Bench) -> None:
    with Pool(OpenclBackend(bench.first)) as pool:
        allocator = PoolAllocator(pool)
        array = full(bench.first, 1, allocator)
        offset = array.base_data.offset
        bench.gate.hold(bench.first)
        cl.enqueue_copy(bench.first, bench.result, array.base_data, byte_count=COUNT)
        del array

        again = full(bench.first, 2, allocator)

        assert again.base_data.offset == offset
        assert bench.what_was_read() == {1}
        assert set(again.get().tolist()) == {2}
        del again


def test_a_recorded_queue_has_read_a_block_before_it_is_written_again(
    bench: Bench,
) -> None:
    with Pool(OpenclBackend(bench.first)) as pool:
        allocator = PoolAllocator(pool)
        array = full(bench.first, 1, allocator)
        bench.read_later(array)
        record_stream(array, bench.second)
        del array

        again = full(bench.first, 2, allocator)
        bench.first.flush()

        assert bench.what_was_read() == {1}
        assert set(again.get().tolist()) == {2}
        del again


def test_a_block_goes_to_another_queue_behind_the_work_of_its_own(
    bench: Bench,
) -> None:
    with Pool(OpenclBackend(bench.first)) as pool:
        array = full(bench.second, 1, PoolAllocator(pool, bench.second))
        bench.read_later(array)
        del array

        again = full(bench.first, 2, PoolAllocator(pool))
        bench.first.flush()

        assert bench.what_was_read() == {1}
        assert set(again.get().tolist()) == {2}
        del again


def test_each_allocator_has_its_own_queue(bench: Bench) -> None:
    with Pool(OpenclBackend(bench.first)) as pool:
        array = full(bench.second, 1, PoolAllocator(pool, bench.second))

        assert memory_of(array).stream == bench.second
        del array


def test_a_copy_without_a_stream_follows_the_owners_work(bench: Bench) -> None:
    with Pool(OpenclBackend(bench.first)) as pool:
        array = cla.empty(
            bench.second, COUNT, np.uint8, allocator=PoolAllocator(pool, bench.second)
        )
        for value in range(50):
            array.fill(value)

        assert set(memory_of(array).tobytes()) == {49}
        del array


def test_nothing_is_refused_while_all_is_free() -> None:
    """The event of an idle queue is not reached when it is asked for at once."""
    context = OpenclBackend().context
    queues = [cl.CommandQueue(context) for _ in range(2)]
    drawn = random.Random(0)
    with Pool(OpenclBackend(queues[0]), limit="2 MiB") as pool:
        for _ in range(300):
            one, other = drawn.sample(queues, 2)
            nbytes, asked = (drawn.randrange(1, 2 << 20) for _ in range(2))
            allocator = PoolAllocator(pool, one)
            cla.empty(one, nbytes, np.uint8, allocator=allocator).fill(1)

            pool.allocate(asked, stream=other).free()
