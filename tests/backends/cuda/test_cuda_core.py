"""``cuda.core`` takes its buffers from a pool."""

import ctypes
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from madl import MissingCapabilityError, OutOfMemoryError, Pool
from madl.integrations.cuda_core import memory_resource
from madl.pool.allocate import parts_of
from tests.backends.cuda.content import MIB
from tests.backends.cuda.emulator import Emulator
from tests.programs import endings, run

if TYPE_CHECKING:
    from cuda.core import Device

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")


@pytest.fixture(autouse=True)
def device() -> "Device":
    device = core.Device(0)
    device.set_current()
    return device


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cuda:0", limit="64 MiB") as pool:
        yield pool
        gc.collect()
        pool.check()
        assert pool.stats().live_nbytes == 0


def test_a_device_of_cuda_core_allocates_from_the_pool(
    pool: Pool, device: "Device"
) -> None:
    stream = device.create_stream()
    before = device.memory_resource
    device.memory_resource = memory_resource(pool, tag="core")
    try:
        buffer = device.allocate(1000, stream=stream)
    finally:
        device.memory_resource = before

    assert buffer.size == 1000
    assert pool.stats().tags["core"].live_nbytes == 1000
    assert int(buffer.handle) % 512 == 0
    buffer.close()


def test_buffers_are_copied_and_filled(pool: Pool, device: "Device") -> None:
    stream = device.create_stream()
    resource = memory_resource(pool)
    one, other = (resource.allocate(1000, stream=stream) for _ in range(2))
    host = core.LegacyPinnedMemoryResource().allocate(1000, stream=stream)

    one.fill(7, stream=stream)
    other.copy_from(one, stream=stream)
    other.copy_to(host, stream=stream)
    stream.sync()

    assert ctypes.string_at(int(host.handle), 1000) == b"\x07" * 1000
    one.close()
    other.close()
    host.close()


def test_a_buffer_that_is_dropped_goes_back(pool: Pool, device: "Device") -> None:
    buffer = memory_resource(pool).allocate(1000, stream=device.default_stream)
    assert pool.stats().live_nbytes == 1000

    del buffer

    assert pool.stats().live_nbytes == 0


def test_a_stream_gets_its_own_blocks_back_at_once(
    pool: Pool, device: "Device"
) -> None:
    stream = device.create_stream()
    resource = memory_resource(pool)
    buffer = resource.allocate(1000, stream=stream)
    address = int(buffer.handle)

    buffer.close(stream)

    again = resource.allocate(1000, stream=stream)
    assert int(again.handle) == address
    again.close()


def test_a_block_waits_for_the_stream_it_was_freed_in(
    pool: Pool, device: "Device", emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    stream, other = device.create_stream(), device.create_stream()
    resource = memory_resource(pool)
    buffer = resource.allocate(1000, stream=stream)
    address = int(buffer.handle)
    buffer.fill(7, stream=other)

    buffer.close(other)

    again = resource.allocate(1000, stream=stream)
    assert int(again.handle) != address
    emulator.run()
    pool.trim()
    last = resource.allocate(1000, stream=stream)
    assert int(last.handle) == address
    again.close()
    last.close()


def test_a_free_inside_a_call_of_the_pool_waits_for_the_next_allocation(
    pool: Pool, device: "Device"
) -> None:
    stream, other = device.create_stream(), device.create_stream()
    resource = memory_resource(pool)
    buffer = resource.allocate(1000, stream=stream)

    parts_of(pool).lock.hold(
        lambda: buffer.close(other)
    )  # as when the collector runs there

    assert pool.stats().live_nbytes == 1000
    resource.allocate(2000, stream=stream).close()
    assert pool.stats().live_nbytes == 0


def closed_stream(device: "Device") -> object:
    stream = device.create_stream()
    stream.close()
    return stream


class Broken:
    """A stream whose handle cannot be had."""

    def __cuda_stream__(self) -> tuple[int, int]:
        raise OSError("mine")


@pytest.mark.parametrize("kind", ["per-thread", "closed", "of another device"])
def test_a_stream_without_events_is_waited_for(
    kind: str, pool: Pool, device: "Device", emulator: Emulator
) -> None:
    resource, stream = memory_resource(pool), device.create_stream()
    other_device = core.Device(1)
    other_device.set_current()
    there = other_device.create_stream()
    device.set_current()
    freed_in = core.PER_THREAD_DEFAULT_STREAM
    host = core.LegacyPinnedMemoryResource().allocate(1000, stream=stream)
    one = resource.allocate(1000, stream=stream)
    one.fill(7, stream=stream)
    stream.sync()
    emulator.set(lazy=1)
    if kind == "of another device":
        freed_in = there
        other_device.set_current()
    one.copy_to(host, stream=freed_in)
    device.set_current()

    one.close(closed_stream(device) if kind == "closed" else freed_in)

    other = resource.allocate(1000, stream=stream)
    other.fill(9, stream=stream)
    stream.sync()
    emulator.run()
    assert ctypes.string_at(int(host.handle), 1000) == b"\x07" * 1000
    other.close()
    host.close()


@pytest.mark.parametrize(
    ("stream", "error"), [("default", TypeError), (Broken(), OSError)]
)
def test_an_error_of_close_leaves_a_buffer_open_and_safe_to_drop(
    stream: object,
    error: type[Exception],
    pool: Pool,
    device: "Device",
    emulator: Emulator,
) -> None:
    resource, own = memory_resource(pool), device.create_stream()
    host = core.LegacyPinnedMemoryResource().allocate(1000, stream=own)
    one = resource.allocate(1000, stream=own)
    one.fill(7, stream=own)
    own.sync()
    emulator.set(lazy=1)
    one.copy_to(host, stream=core.PER_THREAD_DEFAULT_STREAM)

    with pytest.raises(error):
        one.close(stream)

    assert pool.stats().live_nbytes == 1000
    del one
    other = resource.allocate(1000, stream=own)
    other.fill(9, stream=own)
    own.sync()
    emulator.run()
    assert ctypes.string_at(int(host.handle), 1000) == b"\x07" * 1000
    other.close()
    host.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_buffer_can_be_told_its_stream_before_it_is_freed(
    is_closed: bool,  # of the parameters
    pool: Pool,
    device: "Device",
    emulator: Emulator,
) -> None:
    emulator.set(lazy=1)
    stream, other = device.create_stream(), device.create_stream()
    resource = memory_resource(pool)
    buffer = resource.allocate(1000, stream=stream)
    address = int(buffer.handle)

    buffer.set_deallocation_stream(other)
    buffer.fill(7, stream=other)
    if is_closed:
        buffer.close()
    del buffer

    again = resource.allocate(1000, stream=stream)
    assert int(again.handle) != address
    again.close()


def test_a_closed_buffer_has_no_stream_and_no_resource(
    pool: Pool, device: "Device"
) -> None:
    buffer = memory_resource(pool).allocate(1000, stream=device.default_stream)
    buffer.close()
    buffer.close(device.default_stream)  # again: nothing happens

    with pytest.raises(RuntimeError, match="a closed buffer is freed already"):
        buffer.set_deallocation_stream(device.default_stream)
    with pytest.raises(RuntimeError, match="closed"):
        buffer.device_id  # noqa: B018  # reading it is the test
    assert buffer.memory_resource is None


@pytest.mark.parametrize("size", [0, 1000])
def test_a_buffer_says_what_its_resource_says(
    size: int, pool: Pool, device: "Device"
) -> None:
    resource = memory_resource(pool)

    with resource.allocate(size, stream=device.default_stream) as buffer:
        assert isinstance(buffer, core.Buffer)
        assert buffer.size == size
        assert buffer.memory_resource is resource
        assert buffer.device_id == 0
        assert buffer.__dlpack_device__() == (2, 0)
        assert (buffer.is_device_accessible, buffer.is_host_accessible) == (True, False)
        assert not buffer.is_managed


def test_a_copy_without_a_destination_comes_from_the_resource(
    pool: Pool, device: "Device"
) -> None:
    stream = device.create_stream()
    buffer = memory_resource(pool).allocate(1000, stream=stream)

    copied = buffer.copy_to(stream=stream)

    assert copied.memory_resource is buffer.memory_resource
    assert pool.stats().live_nbytes == 2000
    copied.close()
    buffer.close()


def test_what_outlives_a_buffer_keeps_its_memory(pool: Pool, device: "Device") -> None:
    buffer = memory_resource(pool).allocate(1000, stream=device.default_stream)
    capsule = buffer.__dlpack__()

    del buffer

    assert pool.stats().live_nbytes == 1000
    del capsule
    assert pool.stats().live_nbytes == 0


def test_a_pointer_is_not_freed(pool: Pool, device: "Device") -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        memory_resource(pool).deallocate(4096, 8, stream=device.default_stream)

    assert str(caught.value) == (
        "cuda:0 has no deallocation by a pointer, as of 8 bytes at 4096. "
        "Try: buffer.close(stream) of the buffer that allocate() returned"
    )


def test_an_error_leaves_all_as_it_was(pool: Pool, device: "Device") -> None:
    resource = memory_resource(pool)
    kept = resource.allocate(40 * MIB, stream=device.default_stream)

    with pytest.raises(OutOfMemoryError):
        resource.allocate(40 * MIB, stream=device.default_stream)

    assert pool.stats().live_nbytes == 40 * MIB
    kept.close()


def test_a_stream_that_is_none_is_refused(pool: Pool) -> None:
    with pytest.raises(TypeError, match="stream must be an int handle or a stream of"):
        memory_resource(pool).allocate(1000, stream="default")


def test_an_exception_in_flight_stays_what_it_is(pool: Pool, device: "Device") -> None:
    resource = memory_resource(pool)

    def fail(buffer: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(resource.allocate(1000, stream=device.default_stream))


DROPPED_BY_AN_ERROR = """
from cuda.core import Device
import madl
from madl.integrations.cuda_core import memory_resource
device = Device(0)
device.set_current()
pool = madl.Pool("cuda:0", limit="8 MiB")
resource = memory_resource(pool)
stream = device.create_stream()
def ends(f):
    try:
        f()
    except (MemoryError, ZeroDivisionError) as error:
        print(type(error).__name__, pool.stats().live_nbytes)
def allocate(size=1 << 20):
    return resource.allocate(size, stream=stream)
ends(lambda: [allocate() for _ in range(20)])
ends(lambda: print(allocate(), 1 / 0))
ends(lambda: print(allocate(0), 1 / 0))
ends(lambda: {n: allocate() for n in range(20)})
"""


def test_buffers_that_an_error_drops_go_back_and_the_error_stays() -> None:
    assert run(DROPPED_BY_AN_ERROR) == (
        0,
        "OutOfMemoryError 0\nZeroDivisionError 0\nZeroDivisionError 0\n"
        "OutOfMemoryError 0\n",
        "",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuda:0", (0, True, False, False)),
        ("cuda_pinned:0", (-1, True, True, False)),
        ("cuda_managed:0", (0, True, True, True)),
    ],
)
def test_a_resource_says_what_its_memory_is(
    name: str, expected: tuple[int, bool, bool, bool]
) -> None:
    with Pool(name) as pool:
        resource = memory_resource(pool)

        assert isinstance(resource, core.MemoryResource)
        assert expected == (
            resource.device_id,
            resource.is_device_accessible,
            resource.is_host_accessible,
            resource.is_managed,
        )


def test_the_name_of_a_device_is_no_pool() -> None:
    name: Any = "cuda:0"

    with pytest.raises(TypeError, match="pool must be of a CUDA device, got 'cuda:0'"):
        memory_resource(name)


def test_a_pool_of_another_device_is_refused() -> None:
    with pytest.raises(TypeError, match="pool must be of a CUDA device, got <madl"):
        memory_resource(Pool("cpu"))


ALIVE_AT_EXIT = """
import builtins
from cuda.core import Device
import madl
from madl.integrations.cuda_core import memory_resource
device = Device(0)
device.set_current()
resource = memory_resource(madl.default_pool("cuda:0"))
kept = resource.allocate(1000, stream=device.default_stream)
builtins.kept = resource.allocate(1000, stream=device.create_stream())
builtins.capsule = madl.allocate(1000, device="cuda:0").__dlpack__()
"""


def test_a_program_ends_in_silence_with_buffers_alive() -> None:
    assert endings(ALIVE_AT_EXIT) == {(0, "", "")}
