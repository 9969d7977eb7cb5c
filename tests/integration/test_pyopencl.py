"""PyOpenCL arrays over a pool: right results, and blocks that end with the arrays."""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import madl
from madl import FreedMemoryError, OutOfMemoryError, Pool
from madl.backends.opencl import OpenclBackend
from madl.integrations import pyopencl
from madl.integrations.pyopencl import PoolAllocator, default_queue, mapped, memory_of
from madl.pool.allocate import parts_of
from tests.backends.opencl.device import pyopencl_or_skip
from tests.programs import run

cl = pyopencl_or_skip()

import pyopencl.array as cla  # noqa: E402  # only where it is installed

pytestmark = pytest.mark.opencl

MIB = 1 << 20


@pytest.fixture(params=["buffer", "fine", "coarse"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    queue = cl.CommandQueue(OpenclBackend().context)
    with Pool(OpenclBackend(queue, memory=request.param)) as pool:
        yield pool
        gc.collect()
        assert pool.stats().live_nbytes == 0, "an array has left its block behind"
        pool.check()


def live_nbytes(pool: Pool) -> int:
    return pool.stats().live_nbytes


def test_arithmetic_over_a_pool_is_that_of_numpy(pool: Pool) -> None:
    queue, allocator = default_queue(pool), PoolAllocator(pool)
    drawn = np.random.default_rng(1)
    host = [drawn.random((300, 70), np.float32) for _ in range(3)]
    x, y, z = (cla.to_device(queue, one, allocator=allocator) for one in host)

    for _ in range(20):
        x = x * 0.5 + y - z * y
        host[0] = host[0] * np.float32(0.5) + host[1] - host[2] * host[1]

    np.testing.assert_allclose(x.get(), host[0], rtol=1e-5, atol=1e-6)
    assert pool.stats().allocation_count > 40


def test_reductions_take_from_the_pool(pool: Pool) -> None:
    pytest.importorskip("mako")  # pyopencl makes its reductions with it
    queue, allocator = default_queue(pool), PoolAllocator(pool)
    host = np.arange(10_000, dtype=np.int64)
    array = cla.to_device(queue, host, allocator=allocator)

    total = cla.sum(array)

    assert int(total.get()) == host.sum()
    assert memory_of(total).pool is pool


def test_the_memory_of_an_array_is_released_as_that_of_other_allocators(
    pool: Pool,
) -> None:
    array = cla.zeros(
        default_queue(pool), 100, np.float32, allocator=PoolAllocator(pool)
    )

    array.data.release()

    if parts_of(pool).backend.backend.is_managed:  # type: ignore[attr-defined]  # of OpenCL
        assert live_nbytes(pool) == 0
    with pytest.raises((cl.Error, FreedMemoryError)):
        array.data.release()
    del array
    assert live_nbytes(pool) == 0


RECTANGLE = """
import sys
import numpy as np
import pyopencl as cl
import madl
from madl.backends.opencl import OpenclBackend
from madl.integrations.pyopencl import PoolAllocator

queue = cl.CommandQueue(OpenclBackend("opencl:0").context)
allocate = PoolAllocator(madl.Pool(OpenclBackend(queue)))
block, other = allocate(4096), allocate(4096)
plain = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4096)
content = np.arange(4096, dtype=np.uint16).astype(np.uint8)
for buffer in (block, plain):
    cl.enqueue_copy(queue, buffer, content)
shape = dict(region=(16, 4, 2))
pitches = dict(src_pitches=(64, 256), dst_pitches=(64, 256))
origins = dict(src_origin=(0, 0, 0), dst_origin=(0, 0, 0))
for to, of in ((other, block), (other, plain), (plain, block)):
    try:
        cl.enqueue_copy(queue, to, of, **shape, **pitches, **origins)
    except madl.MissingCapabilityError as error:
        print(error)
copied = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4096)
cl.enqueue_copy(queue, copied, plain, **shape, **pitches, **origins)
host = np.zeros(4096, np.uint8)
for of in (block, copied):
    cl.enqueue_copy(
        queue, host, of, **shape, buffer_origin=(0, 0, 0), host_origin=(0, 0, 0),
        buffer_pitches=(64, 256), host_pitches=(64, 256),
    )
    assert (host[256:272] == content[256:272]).all()
"""


def test_a_rectangle_of_a_block_never_ends_the_process() -> None:
    status, output, errors = run(RECTANGLE)

    assert (status, errors) == (0, "")
    if "PoCL" in OpenclBackend().describe()["platform"]:
        assert output == 3 * (
            "opencl:0 has no rectangular copies of sub-buffers, as blocks of a pool "
            "are: PoCL's clEnqueueCopyBufferRect would end the process. Try: read the "
            "rectangle into an array of the host, and write it from there\n"
        )


def test_results_have_the_allocator_of_their_operands(pool: Pool) -> None:
    allocator = PoolAllocator(pool)
    array = cla.zeros(default_queue(pool), 100, np.int32, allocator=allocator)

    result = (array + 1).copy()

    assert result.allocator is allocator
    assert live_nbytes(pool) == 800


def test_a_block_lives_as_long_as_the_last_array_over_it(pool: Pool) -> None:
    array = cla.arange(
        default_queue(pool), 1000, dtype=np.int32, allocator=PoolAllocator(pool)
    )
    part = array[100:200]
    reshaped = array.reshape(10, 100)

    seen = [live_nbytes(pool)]
    del array
    seen.append(live_nbytes(pool))
    assert (reshaped.get() == np.arange(1000).reshape(10, 100)).all()
    del reshaped
    seen.append(live_nbytes(pool))
    assert int((part + part).get()[1]) == 202
    del part
    seen.append(live_nbytes(pool))

    assert seen == [4000, 4000, 4000, 0]


def test_a_block_lives_as_long_as_its_native_object(pool: Pool) -> None:
    native = PoolAllocator(pool)(512)

    live = live_nbytes(pool)
    del native

    assert (live, live_nbytes(pool)) == (512, 0)


def test_a_block_in_a_cycle_is_collected(pool: Pool) -> None:
    native: Any = PoolAllocator(pool)(512)
    native.myself = native if isinstance(native, cl.Buffer) else None
    del native

    gc.collect()

    assert live_nbytes(pool) == 0


def test_an_array_without_elements_takes_nothing(pool: Pool) -> None:
    array = cla.zeros(
        default_queue(pool), (3, 0), np.int32, allocator=PoolAllocator(pool)
    )

    assert array.base_data is None
    assert pool.stats().allocation_count == 0


def test_freed_arrays_are_used_again_without_asking_the_device(pool: Pool) -> None:
    queue, allocator = default_queue(pool), PoolAllocator(pool)
    x = cla.zeros(queue, 50_000, np.float32, allocator=allocator)
    for _ in range(3):
        x = x + 1
    calls = pool.stats().backend_calls

    for _ in range(50):
        x = x + 1

    assert pool.stats().backend_calls == calls
    assert (x.get() == 53).all()


def test_running_out_of_memory_is_the_pools_error(pool: Pool) -> None:
    with Pool(parts_of(pool).backend.backend, limit=4 * MIB) as limited:
        queue, allocator = default_queue(limited), PoolAllocator(limited)
        held = cla.zeros(queue, 3 * MIB, np.uint8, allocator=allocator)

        with pytest.raises(OutOfMemoryError, match=r"limit 4.0 MiB") as caught:
            cla.zeros(queue, 3 * MIB, np.uint8, allocator=allocator)

        assert isinstance(caught.value, MemoryError)
        del held, caught
        assert live_nbytes(limited) == 0


def test_arrays_are_counted_under_the_allocators_tag(pool: Pool) -> None:
    allocator = PoolAllocator(pool, tag="gradients")

    array = cla.zeros(default_queue(pool), 256, np.float32, allocator=allocator)

    assert pool.stats().tags["gradients"].live_nbytes == 1024
    assert memory_of(array).tag == "gradients"


def test_threads_drop_and_make_arrays_of_one_pool(pool: Pool) -> None:
    allocator = PoolAllocator(pool)
    wrong: list[int] = []

    def work(number: int) -> None:
        queue = default_queue(pool)
        for step in range(30):
            x = cla.empty(queue, 2000, np.int32, allocator=allocator)
            x.fill(number * 100 + step)
            if not (x.get() == number * 100 + step).all():
                wrong.append(step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_memory_of_an_array_is_read_by_madl(pool: Pool) -> None:
    array = cla.arange(
        default_queue(pool), 100, dtype=np.int32, allocator=PoolAllocator(pool)
    )

    memory = memory_of(array)

    assert memory.tobytes() == np.arange(100, dtype=np.int32).tobytes()
    assert memory_of(array.base_data) is memory


def test_an_array_of_nobody_has_no_memory() -> None:
    queue = cl.CommandQueue(OpenclBackend().context)
    array = cla.zeros(queue, 10, np.int32)

    with pytest.raises(ValueError, match="has no memory of a madl"):
        memory_of(array)


def test_the_name_of_a_device_is_no_pool() -> None:
    name: Any = "opencl:0"

    with pytest.raises(TypeError, match="must be of an OpenCL device, got 'opencl:0'"):
        PoolAllocator(name)


def test_a_pool_of_another_device_is_refused() -> None:
    with madl.Pool("cpu") as pool, pytest.raises(TypeError) as caught:
        PoolAllocator(pool)

    assert str(caught.value) == (
        "pool must be of an OpenCL device, got <madl.Pool on cpu: 0 bytes live>; make "
        "one with Pool('opencl:0') or Pool(OpenclBackend(queue))"
    )


def test_a_queue_of_another_context_is_refused(pool: Pool) -> None:
    context = cl.Context(default_queue(pool).context.devices)

    with pytest.raises(ValueError, match="of another context"):
        PoolAllocator(pool, cl.CommandQueue(context))


def test_mapped_memory_is_read_and_written_by_the_cpu(pool: Pool) -> None:
    memory = pool.allocate(4000)
    memory.fill(7)

    with mapped(memory) as array:
        assert (array.dtype, array.shape) == (np.uint8, (4000,))
        assert (array == 7).all()
        array[1:3] = 9, 10

    assert memory[:4].tobytes() == b"\7\x09\x0a\7"


def test_a_map_is_behind_what_is_queued_and_before_what_comes(pool: Pool) -> None:
    x = cla.zeros(default_queue(pool), 1 << 20, np.int32, allocator=PoolAllocator(pool))
    for _ in range(5):
        x += 1

    with mapped(memory_of(x), dtype=np.int32) as array:
        assert (array == 5).all()
        array += 1
    x += 1

    assert (x.get() == 7).all()


def test_memory_of_another_queue_is_mapped_behind_its_work(pool: Pool) -> None:
    other = cl.CommandQueue(default_queue(pool).context)
    x = cla.zeros(other, 1 << 20, np.int32, allocator=PoolAllocator(pool, other))

    for queue in (None, default_queue(pool)):
        x += 1
        with mapped(memory_of(x), queue, dtype=np.int32) as array:
            assert (array == array[0]).all()
            array += 1

    assert (x.get() == 4).all()


def test_a_map_in_another_queue_waits_for_the_owners_work(pool: Pool) -> None:
    owner = default_queue(pool)
    memory, twos = pool.allocate(512), pool.allocate(512)
    memory.fill(1)
    twos.fill(2)
    gate = cl.UserEvent(owner.context)
    cl.enqueue_barrier(owner, wait_for=[gate])
    memory.copy_from(twos, stream=owner)  # queued behind the gate, and not waited for
    open_gate = threading.Timer(
        0.3, gate.set_status, [cl.command_execution_status.COMPLETE]
    )
    open_gate.start()

    with mapped(memory, cl.CommandQueue(owner.context)) as array:
        assert (array == 2).all()
    open_gate.join()


@pytest.mark.parametrize("fails", [True, False])
def test_memory_is_unmapped_once_also_after_an_error(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    memory = pool.allocate(512)
    unmaps: list[Any] = []
    queue_map = pyopencl._map

    def count_unmaps(*arguments: Any) -> Any:  # noqa: ANN401  # as for _map
        array, mapped_by, unmap = queue_map(*arguments)

        def unmap_and_keep() -> Any:  # noqa: ANN401  # an event
            unmaps.append(unmap())
            return unmaps[-1]

        return array, mapped_by, unmap_and_keep

    def work() -> None:
        with mapped(memory, dtype="float32") as array:
            array[:] = 2
            assert unmaps == []
            if fails:
                raise KeyError

    monkeypatch.setattr(pyopencl, "_map", count_unmaps)
    with pytest.raises(KeyError) if fails else contextlib.nullcontext():
        work()

    assert [event.command_execution_status for event in unmaps] == [
        cl.command_execution_status.COMPLETE
    ]
    assert memory.tobytes() == np.full(128, 2, np.float32).tobytes()


def test_what_is_no_whole_number_of_elements_is_not_left_mapped(pool: Pool) -> None:
    memory = pool.allocate(510)
    memory.fill(1)

    with pytest.raises(ValueError), mapped(memory, dtype="float32"):  # noqa: PT011  # NumPy's words
        pass

    assert memory.tobytes() == b"\1" * 510


def test_a_slice_is_mapped_alone(pool: Pool) -> None:
    memory = pool.allocate(8192)
    memory.fill(0)

    with mapped(memory[4096:4100]) as array:
        array[:] = 1

    assert memory[4090:4106].tobytes() == b"\0" * 6 + b"\1" * 4 + b"\0" * 6


def test_memory_without_bytes_is_an_empty_array(pool: Pool) -> None:
    with mapped(pool.allocate(0), dtype="float32") as array:
        assert (array.dtype, array.shape) == (np.float32, (0,))


@pytest.mark.parametrize("nbytes", [0, 8])
def test_freed_memory_is_not_mapped(pool: Pool, nbytes: int) -> None:
    memory = pool.allocate(nbytes)
    memory.free()

    with pytest.raises(FreedMemoryError, match="a map on memory"), mapped(memory):
        pass


def test_memory_of_the_host_is_not_mapped() -> None:
    with madl.Pool("cpu") as pool, pytest.raises(TypeError, match="of an OpenCL"):
        mapped(pool.allocate(8)).__enter__()


def test_a_map_in_a_queue_of_another_context_is_refused(pool: Pool) -> None:
    context = cl.Context(default_queue(pool).context.devices)
    memory = pool.allocate(8)

    with pytest.raises(ValueError, match="of another context"):
        mapped(memory, cl.CommandQueue(context)).__enter__()
