"""Memory of devices whose work is done later: who may use a freed block, and when."""

import gc
import sys
import threading

import pytest

from madl import (
    BackendCallError,
    FreedMemoryError,
    MissingCapabilityError,
    OutOfMemoryError,
    Pool,
)
from madl.backends.protocol import Capability
from madl.errors import NativeFailure
from madl.testing import FakeBackend, FakeEvent, FakeStream

KIB = 1024
MIB = 1024 * KIB
PAGE = 16 * KIB

SEGMENTS = Capability.HOST_ACCESS | Capability.STREAM_ORDERED
DEVICE = SEGMENTS | Capability.COMMIT | Capability.REMAP


def make_backend(capabilities: Capability = DEVICE) -> FakeBackend:
    return FakeBackend(capabilities=capabilities)


@pytest.fixture(params=[DEVICE, SEGMENTS], ids=["commits", "segments"])
def backend(request: pytest.FixtureRequest) -> FakeBackend:
    return make_backend(request.param)


@pytest.fixture
def pool(backend: FakeBackend) -> Pool:
    return Pool(backend)


@pytest.fixture
def streams(backend: FakeBackend) -> tuple[FakeStream, FakeStream]:
    return backend.make_stream(), backend.make_stream()


def test_a_stream_has_its_freed_block_again_at_once(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, _ = streams
    memory = pool.allocate(PAGE, stream=first)
    address = memory.address
    first.queue(idle_work)
    memory.free()

    again = pool.allocate(PAGE, stream=first)

    assert (again.address, again.stream) == (address, first)
    assert again.pool is pool


def test_another_stream_gets_other_memory(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    beside, memory = (pool.allocate(PAGE, stream=first) for _ in range(2))
    address = memory.address
    first.queue(idle_work)
    memory.free()

    assert pool.allocate(PAGE, stream=second).address != address
    assert pool.allocate(PAGE).address != address
    assert beside.stream is first


def test_offsets_of_one_stream_are_those_without_streams(
    backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    plain, ordered = Pool(make_backend(backend.capabilities)), Pool(backend)
    sizes = [100, 5 * PAGE, 700, 2 * MIB, 512, 3 * PAGE]

    def places(pool: Pool, stream: FakeStream | None) -> list[tuple[int, ...]]:
        held = [pool.allocate(size, stream=stream) for size in sizes]
        del held[1:4]
        held += [pool.allocate(size, stream=stream) for size in reversed(sizes)]
        return [
            tuple(block.offset for block in arena.blocks)
            for arena in pool.snapshot().arenas
        ]

    assert places(plain, None) == places(ordered, streams[0])


def idle_work() -> None:
    """Stand for a kernel that uses a block."""


def test_idle_pages_are_moved_only_when_their_work_is_seen_done() -> None:
    backend = make_backend()
    first, second, third = (backend.make_stream() for _ in range(3))
    pool = Pool(backend)
    memory = pool.allocate(4 * PAGE, stream=first)
    first.queue(idle_work)
    memory.free()

    kept = pool.allocate(4 * PAGE, stream=second)
    committed_while_queued = backend.committed_nbytes
    first.pump()
    also_kept = pool.allocate(4 * PAGE, stream=third)

    assert committed_while_queued == 8 * PAGE
    assert backend.committed_nbytes == 8 * PAGE
    assert pool.stats().recycled_pages == 4
    assert kept.address != also_kept.address
    pool.check()


def test_nothing_is_waited_for_that_a_limit_does_not_force(
    backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    pool = Pool(backend, limit=8 * PAGE)
    for _ in range(5):
        memory = pool.allocate(4 * PAGE, stream=first)
        first.queue(idle_work)
        memory.free()
    kept = pool.allocate(4 * PAGE, stream=second)
    done_before = first.done_count

    forced = pool.allocate(8 * PAGE - 4 * PAGE, stream=second)

    assert done_before == 0
    assert backend.committed_nbytes <= 8 * PAGE
    assert {kept.stream, forced.stream} == {second}
    pool.check()


def test_at_the_limit_a_stream_takes_over_memory_behind_its_work() -> None:
    backend = make_backend()
    first, second = backend.make_stream(), backend.make_stream()
    pool = Pool(backend, limit=4 * PAGE)
    memory = pool.allocate(4 * PAGE, stream=first)
    address = memory.address
    first.queue(idle_work)
    memory.free()

    taken = pool.allocate(4 * PAGE, stream=second)

    assert taken.address == address
    assert first.done_count == 0
    second.pump()
    assert first.done_count == 1


def test_at_the_limit_the_pool_waits_where_it_has_to_move_memory() -> None:
    backend = make_backend()
    first, second = backend.make_stream(), backend.make_stream()
    pool = Pool(backend, limit=4 * PAGE, page_size=PAGE)
    held = [pool.allocate(PAGE, stream=first) for _ in range(4)]
    first.queue(idle_work)
    del held[::2]

    taken = pool.allocate(2 * PAGE, stream=second)

    assert (taken.nbytes, first.done_count) == (2 * PAGE, 1)
    assert pool.stats().recycled_pages == 2
    pool.check()


def test_at_the_limit_a_stream_finds_room_beside_the_blocks_of_another() -> None:
    backend = make_backend()
    first, second = backend.make_stream(), backend.make_stream()
    pool = Pool(backend, limit=PAGE, page_size=PAGE)
    beside = pool.allocate(512, stream=first)

    for _ in range(3):  # it goes back, and comes again
        guest = pool.allocate(1024, stream=second)
        assert abs(guest.address - beside.address) < PAGE
        guest.free()
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(PAGE, stream=second)

    assert caught.value.report.tried[1][0] == "waiting for the device"
    pool.check()


def test_a_block_that_another_stream_uses_is_not_reused_before(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    memory = pool.allocate(PAGE, stream=first)
    address = memory.address
    second.queue(idle_work)
    memory.record_stream(second)
    memory.free()

    while_used = pool.allocate(PAGE, stream=first)
    cached = pool.stats().cached_nbytes
    pool.check()
    second.pump()
    pool.trim()
    afterwards = pool.allocate(PAGE, stream=first)

    assert while_used.address != address
    assert (cached, pool.stats().cached_nbytes) == (PAGE, 0)
    assert afterwards.address == address
    pool.check()


def test_a_busy_stream_is_asked_once_for_all_blocks_it_uses(
    pool: Pool,
    backend: FakeBackend,
    streams: tuple[FakeStream, FakeStream],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = streams
    for _ in range(20):
        memory = pool.allocate(PAGE, stream=first)
        second.queue(idle_work)
        memory.record_stream(second)
        memory.free()
    asked: list[FakeEvent] = []
    is_done = backend.is_done

    def noting(event: FakeEvent) -> bool:
        asked.append(event)
        return is_done(event)

    monkeypatch.setattr(backend, "is_done", noting)

    pool.allocate(5 * MIB, stream=first)

    assert len([event for event in asked if event.stream is second]) <= 2
    second.pump()
    pool.trim()
    assert pool.stats().cached_nbytes == 0


def test_its_own_stream_holds_no_block_back(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, _ = streams
    memory = pool.allocate(PAGE, stream=first)
    address = memory.address
    first.queue(idle_work)
    memory.record_stream(first)
    memory.free()

    assert pool.allocate(PAGE, stream=first).address == address


def test_the_default_stream_is_the_one_of_no_stream(
    pool: Pool, backend: FakeBackend
) -> None:
    memory = pool.allocate(PAGE)
    address = memory.address
    memory.free()

    assert pool.allocate(PAGE, stream=backend.default_stream).address == address


def test_a_freed_handle_records_no_stream(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    memory = pool.allocate(PAGE, stream=streams[0])
    memory.free()

    with pytest.raises(FreedMemoryError):
        memory.record_stream(streams[1])


def test_a_part_of_a_block_is_used_like_all_of_it(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    memory = pool.allocate(PAGE, stream=first)
    address = memory.address
    second.queue(idle_work)
    part = memory[512:1024]
    part.record_stream(second)
    assert part.stream is first
    del part
    memory.free()

    assert pool.allocate(PAGE, stream=first).address != address


def test_a_forgotten_stream_leaves_its_memory_to_the_default_one(
    pool: Pool, backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, _ = streams
    live = pool.allocate(PAGE, stream=first)
    pool.allocate(5 * PAGE, stream=first).free()
    committed = pool.stats().committed_nbytes

    pool.forget_stream(first)
    memory = pool.allocate(5 * PAGE)
    live.free()
    again = pool.allocate(PAGE, stream=first)

    segment_of_again = 0 if DEVICE in backend.capabilities else 2 * MIB
    assert pool.stats().committed_nbytes <= committed + max(PAGE, segment_of_again)
    assert (memory.stream, again.stream) == (None, first)
    pool.check()


def test_a_block_of_a_forgotten_stream_comes_back(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, _ = streams
    live = pool.allocate(3 * PAGE, stream=first)
    pool.forget_stream(first)

    live.free()
    pool.trim()

    assert pool.stats().committed_nbytes == 0
    pool.forget_stream(first)
    pool.check()


def test_a_forgotten_stream_is_asked_for_nothing_more(
    pool: Pool, backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    memory = pool.allocate(PAGE, stream=first)
    memory.record_stream(second)
    second.queue(idle_work)
    pool.forget_stream(second)
    second.owner = None  # it has ended: whoever asks is refused
    memory.free()

    backend.finish()
    pool.trim()

    assert second.done_count == 1
    assert pool.stats().cached_nbytes == 0
    pool.check()


@pytest.mark.parametrize("failing", ["record", "is_done"])
def test_a_device_that_cannot_say_what_is_done_loses_no_block(
    pool: Pool,
    backend: FakeBackend,
    streams: tuple[FakeStream, FakeStream],
    failing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = streams
    memory = pool.allocate(PAGE, stream=first)
    memory.record_stream(second)
    memory.free()

    def fail(_: object) -> object:
        raise BackendCallError("fake", failing, NativeFailure(failing, 1, "fails"))

    with monkeypatch.context() as patch:
        patch.setattr(backend, failing, fail)
        with pytest.raises(BackendCallError):
            pool.allocate(5 * MIB, stream=first)
    pool.check()
    pool.trim()

    assert pool.stats().committed_nbytes == 0
    pool.check()


def test_all_lanes_have_one_account(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    held = [pool.allocate(1000), pool.allocate(2000, stream=first, tag="a")]
    pool.allocate(4000, stream=second).free()
    del held[0]

    stats = pool.stats()

    assert (stats.live_nbytes, stats.live_high_water_nbytes) == (2000, 7000)
    assert (stats.allocation_count, stats.free_count, stats.miss_count) == (3, 2, 3)
    assert stats.tags["a"].live_nbytes == 2000
    assert len(pool.snapshot().arenas) == 3
    pool.check()


def test_trim_and_close_wait_and_give_all_back(
    pool: Pool, backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    memory = pool.allocate(PAGE, stream=first)
    last = pool.allocate(PAGE, stream=second)
    first.queue(idle_work)
    memory.free()
    pool.trim()
    assert first.done_count == 1

    assert pool.close().live_count == 1
    last.free()

    assert not backend.reservations
    with pytest.raises(ValueError, match="closed pool"):
        pool.allocate(PAGE, stream=first)


def test_a_handle_keeps_the_pool_of_its_stream(
    backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    memory = Pool(backend).allocate(PAGE, stream=streams[0])

    gc.collect()

    assert memory.pool.stats().live_nbytes == PAGE
    del memory
    gc.collect()
    assert not backend.reservations


def test_what_is_no_stream_is_refused_and_nothing_is_lost(
    pool: Pool, backend: FakeBackend
) -> None:
    with pytest.raises(TypeError, match="stream must be"):
        pool.allocate(PAGE, stream="stream")
    with pytest.raises(ValueError, match="another device"):
        pool.allocate(PAGE, stream=make_backend().make_stream())

    assert pool.stats().live_nbytes == 0
    assert not backend.reservations


def test_a_device_without_streams_forgets_none() -> None:
    with pytest.raises(MissingCapabilityError):
        Pool("sim").forget_stream(7)


def test_a_stream_is_forgotten_once(
    pool: Pool, backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    pool.allocate(PAGE, stream=first).free()
    kept = pool.allocate(PAGE)

    pool.forget_stream(first)
    pool.forget_stream(first)
    pool.forget_stream(second)
    pool.forget_stream(backend.default_stream)

    assert second.queued_count == 0
    kept.free()
    pool.check()
    pool.close()
    assert not backend.reservations


def test_what_is_live_of_a_forgotten_stream_belongs_to_the_default_one(
    pool: Pool, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, _ = streams
    memory, empty = pool.allocate(PAGE, stream=first), pool.allocate(0, stream=first)

    pool.forget_stream(first)
    empty.resize(PAGE)
    memory.resize(2 * PAGE)

    assert (memory.stream, empty.stream) == (None, None)
    assert pool.stats().live_nbytes == 3 * PAGE
    pool.check()


def test_what_is_freed_while_trim_waits_stays_committed() -> None:
    backend = make_backend()
    stream, pool = backend.make_stream(), Pool(backend)
    memory = pool.allocate(PAGE, stream=stream)
    synchronize = backend.synchronize
    waited: list[object] = []

    def free_meanwhile(event: object) -> None:
        synchronize(event)
        assert isinstance(event, FakeEvent)
        if event.stream is stream and not waited:
            waited.append(event)
            stream.queue(idle_work)
            memory.free()

    backend.synchronize = free_meanwhile  # type: ignore[method-assign]  # another thread's turn
    pool.trim()

    assert backend.committed_nbytes == PAGE
    assert stream.done_count == 0
    pool.trim()
    assert (backend.committed_nbytes, stream.done_count) == (0, 1)


def test_a_free_after_close_returns_though_the_device_is_lost(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(backend)
    memory = pool.allocate(PAGE)
    pool.close()

    def fail(_: object) -> None:
        raise BackendCallError("fake", "wait", NativeFailure("wait", 1, "lost"))

    monkeypatch.setattr(backend, "synchronize", fail)
    memory.free()

    assert not backend.reservations


def test_a_closed_pool_leaves_nothing_that_another_stream_used(
    pool: Pool, backend: FakeBackend, streams: tuple[FakeStream, FakeStream]
) -> None:
    first, second = streams
    memory, later = (pool.allocate(PAGE, stream=first) for _ in range(2))
    memory.record_stream(second)
    second.queue(idle_work)
    memory.free()

    pool.close()
    later.record_stream(second)
    later.free()

    assert not backend.reservations


def test_lanes_of_many_threads_have_one_exact_account() -> None:
    backend = make_backend()
    pool, count = Pool(backend), 2000

    def allocate_and_free(stream: FakeStream | None) -> None:
        for _ in range(count):
            pool.allocate(512, stream=stream).free()

    lanes = [None, *(backend.make_stream() for _ in range(3))]
    threads = [
        threading.Thread(target=allocate_and_free, args=(stream,)) for stream in lanes
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    stats = pool.stats()
    assert (stats.live_nbytes, stats.allocation_count) == (0, 4 * count)
    pool.check()


def test_misses_of_a_stream_that_was_forgotten_are_counted_still(
    backend: FakeBackend,
) -> None:
    pool = Pool(backend)
    stream = backend.make_stream()
    pool.allocate(100).free()
    for nbytes in (1000, 2000, 3000):
        pool.allocate(nbytes, stream=stream).free()
    before = pool.stats().miss_count

    pool.forget_stream(stream)

    assert pool.stats().miss_count == before == 4


class LateBackend(FakeBackend):
    """A driver that knows of an event only once it was waited for."""

    def __init__(self, capabilities: Capability) -> None:
        super().__init__(total_nbytes=64 * PAGE, capabilities=capabilities)
        self.waits: list[FakeStream] = []
        self.seen: list[FakeEvent] = []

    def is_done(self, event: object) -> bool:
        assert isinstance(event, FakeEvent)
        return event in self.seen and super().is_done(event)

    def synchronize(self, event: object) -> None:
        super().synchronize(event)
        assert isinstance(event, FakeEvent)
        self.waits.append(event.stream)
        self.seen.append(event)


@pytest.fixture(params=[DEVICE, SEGMENTS], ids=["commits", "segments"])
def late(request: pytest.FixtureRequest) -> LateBackend:
    return LateBackend(request.param)


def test_what_another_stream_has_freed_is_had_by_one_wait(late: LateBackend) -> None:
    pool = Pool(late, limit=8 * PAGE)
    first, second, third = (late.make_stream() for _ in range(3))
    held = pool.allocate(PAGE, stream=third)
    memory = pool.allocate(5 * PAGE, stream=second)
    second.queue(idle_work)
    memory.free()

    pool.allocate(7 * PAGE, stream=first).free()

    assert set(late.waits) == {second}
    held.free()


def test_holes_of_a_stream_are_joined_at_the_limit(late: LateBackend) -> None:
    if Capability.REMAP not in late.capabilities:
        pytest.skip("no pages move")
    pool = Pool(late, limit=8 * PAGE)
    held = [pool.allocate(PAGE) for _ in range(8)]
    for memory in held[::2]:
        memory.free()

    pool.allocate(4 * PAGE).free()

    assert len(late.waits) == 1


def test_what_a_reclaimer_frees_in_another_stream_is_waited_for(
    late: LateBackend,
) -> None:
    pool = Pool(late, limit=8 * PAGE)
    first, second = late.make_stream(), late.make_stream()
    cache = [pool.allocate(5 * PAGE, stream=second)]

    def drop(_: int) -> None:
        second.queue(idle_work)
        cache.clear()

    pool.on_out_of_memory(drop)

    pool.allocate(7 * PAGE, stream=first).free()

    assert cache == []


def test_an_event_from_before_a_free_says_nothing_of_it(late: LateBackend) -> None:
    """What was freed later is not taken while its stream still uses it."""
    pool = Pool(late, limit=8 * PAGE)
    first, second = late.make_stream(), late.make_stream()
    early, last = (pool.allocate(3 * PAGE, stream=second) for _ in range(2))
    early.free()
    held = pool.allocate(4 * PAGE, stream=first)  # waits for what is free by now
    done: list[str] = []
    second.queue(lambda: done.append("work of the second stream"))
    last.free()

    pool.allocate(4 * PAGE, stream=first).free()

    assert done == ["work of the second stream"]
    held.free()


def test_an_error_names_the_wait_once(late: LateBackend) -> None:
    pool = Pool(late, limit=8 * PAGE)
    held = [pool.allocate(PAGE, stream=late.make_stream()) for _ in range(3)]
    pool.allocate(PAGE, stream=late.make_stream()).free()

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(8 * PAGE)

    names = [name for name, _ in caught.value.report.tried]
    assert names.count("waiting for the device") == 1
    del held
