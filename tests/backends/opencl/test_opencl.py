"""OpenCL as a backend: which device, what is refused, sub-buffers, queues."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import madl
from madl import (
    BackendCallError,
    BackendNotFoundError,
    Capability,
    OutOfMemoryError,
    Pool,
)
from madl.backends.opencl import OpenclBackend, madl_devices, madl_open
from madl.backends.opencl.buffers import fill_parts
from madl.backends.protocol import MemoryInfo
from madl.integrations.pyopencl import default_queue
from tests.backends.opencl.device import Gate, pyopencl_or_skip

cl = pyopencl_or_skip()
pytestmark = pytest.mark.opencl

MIB = 1 << 20
BASE = OpenclBackend().alignment


def test_every_device_can_be_opened_by_its_name() -> None:
    names = madl_devices()

    assert names[0] == "opencl:0"
    for name in names:
        backend = madl_open(name)
        assert backend is not None
        assert backend.device == name


def test_the_kind_alone_is_the_first_device() -> None:
    assert OpenclBackend("opencl").device == "opencl:0"


def test_a_pool_is_opened_by_name() -> None:
    with Pool("opencl:0") as pool, pool.allocate(100) as memory:
        memory.fill(3)

        assert memory.tobytes() == b"\x03" * 100


def test_other_kinds_are_left_to_others() -> None:
    assert madl_open("cuda:0") is None


def test_a_device_that_is_not_there_is_not_found() -> None:
    with pytest.raises(BackendNotFoundError) as caught:
        OpenclBackend("opencl:99")

    assert caught.value.device == "opencl:99"
    assert caught.value.reason.endswith(", counted from 0")


def test_all_backends_by_name_share_a_context() -> None:
    first, second = OpenclBackend("opencl:0"), OpenclBackend("opencl:0")

    assert first.context == second.context
    assert first == second
    assert hash(first) == hash(second)
    assert first != OpenclBackend("opencl:0", memory="managed")
    assert first != OpenclBackend(cl.Context(first.context.devices))


@pytest.mark.parametrize(
    "target",
    [
        lambda context: context,
        lambda context: context.devices[0],
        lambda context: cl.CommandQueue(context),
    ],
    ids=["context", "device", "queue"],
)
def test_a_backend_is_made_from_objects_of_pyopencl(
    target: Callable[[Any], Any], backend: OpenclBackend
) -> None:
    made = OpenclBackend(target(backend.context))

    assert made.device == "opencl:0"
    assert made.context == backend.context


def test_work_without_a_stream_is_in_the_queue_that_was_passed(
    backend: OpenclBackend, new_queue: Callable[[], Any]
) -> None:
    queue = new_queue()

    assert OpenclBackend(queue).queue == queue


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^target must be a device's name or .*got 7"):
        OpenclBackend(7)


def test_a_kind_of_memory_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="memory must be one of buffer, managed, fine"):
        OpenclBackend(memory="texture")


def test_the_kinds_of_memory_have_their_capabilities() -> None:
    common = (
        Capability.COPY
        | Capability.FILL
        | Capability.VIEW
        | Capability.STREAM_ORDERED
        | Capability.DESCRIBE
    )
    managed = common | Capability.MANAGED

    assert OpenclBackend().capabilities == common
    assert OpenclBackend(memory="coarse").capabilities == managed
    assert OpenclBackend(memory="fine").capabilities == managed | Capability.HOST_ACCESS


def test_what_is_reserved_is_not_available(backend: OpenclBackend) -> None:
    total = backend.memory_info().total_nbytes

    reservation = backend.reserve(MIB)

    assert backend.memory_info() == MemoryInfo(total, total - MIB)
    backend.release(reservation)
    assert backend.memory_info() == MemoryInfo(total, total)


def test_more_than_one_buffer_can_have_is_out_of_memory_that_says_so() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        OpenclBackend().reserve(1 << 50)

    text = str(caught.value)
    assert "clCreateBuffer failed with -61 (CL_INVALID_BUFFER_SIZE: one " in text
    assert text.count("CL_DEVICE_MAX_MEM_ALLOC_SIZE") == 1


def test_a_pool_takes_several_buffers_where_one_is_too_small() -> None:
    backend = OpenclBackend()

    class SmallBuffers(OpenclBackend):
        @property
        def largest_nbytes(self) -> int:
            return 4 * MIB

    with Pool(SmallBuffers()) as pool:
        held = [pool.allocate(3 * MIB) for _ in range(3)]
        for value, memory in enumerate(held):
            memory.fill(value)
        for value, memory in enumerate(held):
            assert memory.tobytes() == bytes([value]) * 3 * MIB
        for memory in held:
            memory.free()
        pool.allocate(4 * MIB).free()  # what is empty is not joined beyond that
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(5 * MIB)
        assert "one piece has at most 4" in str(caught.value.report.native)
        pool.check()
    assert backend.largest_nbytes > 4 * MIB


def test_a_failed_call_names_function_code_and_text(backend: OpenclBackend) -> None:
    reservation = backend.reserve(4096)

    with pytest.raises(BackendCallError) as caught:
        backend.fill(reservation, 8192, 128, 0)  # beyond the end

    backend.release(reservation)
    assert str(caught.value) == (
        "opencl:0: cannot fill 128 bytes: clEnqueueFillBuffer failed with -30 "
        "(CL_INVALID_VALUE)"
    )
    assert isinstance(caught.value.__cause__, cl.Error)


def test_native_is_a_sub_buffer_of_the_bytes() -> None:
    with Pool("opencl:0") as pool:
        pool.allocate(700).free()
        memory = pool.allocate(1000)
        memory.copy_from(bytes(range(250)) * 4)

        native: Any = memory.native

        found = bytearray(1000)
        cl.enqueue_copy(default_queue(pool), found, native)
        assert isinstance(native, cl.Buffer)
        assert native.size == 1000
        assert found == bytes(range(250)) * 4
        assert pool.allocate(0).native is None


def test_a_slice_has_a_sub_buffer_where_one_may_start() -> None:
    with Pool("opencl:0") as pool:
        memory = pool.allocate(4 * BASE)

        native: Any = memory[2 * BASE : 3 * BASE].native
        with pytest.raises(ValueError, match="a sub-buffer starts at") as caught:
            memory[4:8].native  # noqa: B018  # the property raises

        assert native.size == BASE
        assert str(caught.value) == (
            f"a sub-buffer starts at a multiple of {BASE} bytes of its buffer, got 4; "
            "cut the slice there, or pass the whole memory and an offset"
        )


def test_a_sub_buffer_outlives_the_pool() -> None:
    pool = Pool("opencl:0")
    memory = pool.allocate(BASE)
    memory.fill(9)
    native: Any = memory.native
    memory.free()
    queue = default_queue(pool)
    pool.close()

    found = bytearray(BASE)
    cl.enqueue_copy(queue, found, native)

    assert found == b"\x09" * BASE


def test_buffers_have_no_address_and_no_host_view() -> None:
    with Pool("opencl:0") as pool:
        memory = pool.allocate(8)

        with pytest.raises(madl.MissingCapabilityError):
            memory.address  # noqa: B018  # the property raises
        with pytest.raises(madl.MissingCapabilityError, match="host access"):
            memory.memoryview()


def test_fine_grained_memory_is_an_array_on_the_host() -> None:
    with Pool("opencl_managed:0") as pool:
        memory = pool.allocate(4000)
        array = memory.as_array("float32")
        array[:] = 2
        native: Any = memory.native

        found = bytearray(8)
        cl.enqueue_copy(default_queue(pool), found, native, byte_count=8)

        assert found == array[:2].tobytes()
        assert native.svm_ptr == memory.address
        del array


def test_memory_of_one_context_is_copied_inside_the_device() -> None:
    with Pool("opencl:0") as one, Pool("opencl:0") as other:
        source, destination = one.allocate(100), other.allocate(100)
        source.copy_from(bytes(range(100)))

        madl.copy(destination, source)

        assert destination.tobytes() == bytes(range(100))


def test_memory_of_two_contexts_is_copied_through_the_host() -> None:
    context = cl.Context(OpenclBackend().context.devices)
    with Pool("opencl:0") as one, Pool(OpenclBackend(context)) as other:
        source, destination = one.allocate(100), other.allocate(100)
        source.copy_from(bytes(range(100)))

        madl.copy(destination, source)

        assert destination.tobytes() == bytes(range(100))


def test_what_is_no_queue_is_no_stream(backend: OpenclBackend) -> None:
    with pytest.raises(TypeError) as caught:
        backend.stream_key(7)

    assert str(caught.value) == (
        "a stream of opencl:0 is a pyopencl.CommandQueue, got 7 (int)"
    )


def test_a_queue_of_another_context_is_refused(backend: OpenclBackend) -> None:
    other = cl.CommandQueue(cl.Context(backend.context.devices))

    with pytest.raises(ValueError, match="of another context than opencl:0"):
        backend.stream_key(other)


def test_a_queue_without_an_order_is_no_stream(backend: OpenclBackend) -> None:
    flag = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(backend.context, properties=flag)

    with pytest.raises(ValueError, match="out-of-order") as caught:
        backend.stream_key(queue)
    with pytest.raises(ValueError, match="out-of-order"):
        OpenclBackend(queue)

    assert str(caught.value) == (
        "an out-of-order CommandQueue is no stream: what is queued in it may run in "
        "any order; make one without OUT_OF_ORDER_EXEC_MODE_ENABLE"
    )


def test_two_objects_of_one_queue_are_one_stream(
    backend: OpenclBackend, new_queue: Callable[[], Any]
) -> None:
    queue = new_queue()

    again = cl.CommandQueue.from_int_ptr(queue.int_ptr)

    assert backend.stream_key(queue) == backend.stream_key(again)


def test_an_event_is_not_done_before_what_is_queued_ahead_of_it(
    backend: OpenclBackend, new_queue: Callable[[], Any], gate: Gate
) -> None:
    first, second = new_queue(), new_queue()
    gate.hold(first)
    event = backend.record(first)
    backend.wait(second, event)
    behind = backend.record(second)

    before = (backend.is_done(event), backend.is_done(behind))
    gate.open()
    backend.synchronize(behind)

    assert before == (False, False)
    assert (backend.is_done(event), backend.is_done(behind)) == (True, True)


@pytest.mark.parametrize("direction", ["copy_to_host", "copy_from_host"])
@pytest.mark.parametrize("kind", ["buffer", "fine", "coarse"])
def test_a_copy_in_a_stream_returns_before_it_is_done(
    direction: str, kind: str, new_queue: Callable[[], Any], gate: Gate
) -> None:
    backend, queue = OpenclBackend(memory=kind), new_queue()
    reservation = backend.reserve(4096)
    backend.fill(reservation, 0, 4096, 1)
    gate.hold(queue)
    host = bytearray(4096)
    opened = gate.open_soon()

    getattr(backend, direction)(reservation, 0, memoryview(host), stream=queue)
    is_open, at_first = gate.is_open, bytes(host)
    backend.synchronize(backend.record(queue))
    opened.join()

    expected = 1 if direction == "copy_to_host" else 0
    found = bytearray(4096)
    backend.copy_to_host(reservation, 0, memoryview(found))
    assert not is_open
    assert at_first == bytes(4096)
    assert set(found) == set(host) == {expected}
    backend.release(reservation)


def test_managed_memory_is_released_after_the_work_that_is_queued(
    new_queue: Callable[[], Any], gate: Gate
) -> None:
    queue = new_queue()
    backend = OpenclBackend(queue, memory="managed")
    reservation = backend.reserve(4096)
    gate.hold(queue)
    cl.enqueue_fill(queue, backend.view(reservation, 0, 4096), bytes(16), 4096)
    opened = gate.open_soon()

    backend.release(reservation)

    assert gate.is_open
    opened.join()


def test_a_queue_of_another_device_is_refused(
    backend: OpenclBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Queue:
        context = backend.context
        device = SimpleNamespace(name="another")

    monkeypatch.setattr(cl, "CommandQueue", Queue)

    with pytest.raises(ValueError, match="is of device 'another'") as caught:
        backend.stream_key(Queue())

    assert str(caught.value) == (
        "the CommandQueue is of device 'another', the pool of "
        f"{backend.context.devices[0].name!r}"
    )


def test_a_fill_is_cut_into_what_is_fast_and_its_ends() -> None:
    for offset in range(0, 300, 7):
        for nbytes in range(1, 400, 3):
            parts = list(fill_parts(offset, nbytes))
            starts, stops, widths = zip(*parts, strict=True)

            assert (starts[0], stops[-1]) == (offset, offset + nbytes)
            assert starts[1:] == stops[:-1]
            assert all(
                start % width == 0 == stop % width for start, stop, width in parts
            )
            assert sum(stop - start for start, stop, width in parts if width == 1) < 256
            assert widths.count(128) <= 1


def test_copies_that_are_done_are_not_kept(
    backend: OpenclBackend, new_queue: Callable[[], Any]
) -> None:
    queue = new_queue()
    reservation = backend.reserve(4096)
    source = memoryview(bytes(64))

    for _ in range(100):
        backend.copy_from_host(reservation, 0, source, stream=queue)
        backend.synchronize(backend.record(queue))

    assert len(backend._in_flight) <= 2
    backend.release(reservation)


def test_memory_is_reserved_while_a_queue_of_the_user_waits(
    new_queue: Callable[[], Any], gate: Gate
) -> None:
    queue = new_queue()
    gate.hold(queue)
    backend = OpenclBackend(queue)
    backend._memory._on_host = False  # type: ignore[union-attr]  # as where it writes

    backend.release(backend.reserve(4096))  # it would wait for ever


def test_it_describes_itself(backend: OpenclBackend) -> None:
    described = backend.describe()

    assert described["kind of memory"] == "buffer"
    assert described["sub-buffers start at"] == f"multiples of {BASE}"


@pytest.mark.parametrize("kind", ["buffer", "fine", "coarse"])
def test_bytes_are_read_after_the_work_that_is_queued(
    kind: str, new_queue: Callable[[], Any]
) -> None:
    queue = new_queue()
    with Pool(OpenclBackend(queue, memory=kind)) as pool:
        memory = pool.allocate(8 * MIB)
        for value in range(10):
            cl.enqueue_fill(queue, memory.native, bytes([value]) * 16, memory.nbytes)

        assert set(memory.tobytes()) == {9}
        memory.fill(1)
        assert set(memory.tobytes()) == {1}
