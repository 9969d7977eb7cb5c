"""``zero=``: what memory holds when it is handed out, and once it was freed."""

import ctypes
import gc
import random
from collections.abc import Callable
from typing import cast

import pytest

import madl
from madl import (
    BackendCallError,
    Memory,
    MissingCapabilityError,
    OutOfMemoryError,
    Pool,
)
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Backend, Capability, CopyBackend, Reservation
from madl.hotpath import place_of
from madl.memory.place import reserved_place
from madl.pool.allocate import parts_of
from madl.pool.options import Zero
from madl.testing import FakeBackend, Fault
from madl.testing.fakes import GARBAGE

KIB = 1024
PAGE = 16 * KIB

HOST = Capability.HOST_ACCESS
PAGES = Capability.COMMIT
MOVED = PAGES | Capability.REMAP
DEVICE = Capability.COPY | Capability.FILL
STREAMS = DEVICE | Capability.STREAM_ORDERED

BACKENDS: dict[str, Callable[[], Backend]] = {
    "cpu": lambda: CpuBackend(page_nbytes=64 * KIB),
    "host pages": lambda: FakeBackend(capabilities=HOST | MOVED),
    "host segments": lambda: FakeBackend(capabilities=HOST),
    "device": lambda: FakeBackend(capabilities=DEVICE | MOVED),
    "device segments": lambda: FakeBackend(capabilities=DEVICE),
    "streams": lambda: FakeBackend(capabilities=STREAMS | MOVED),
    "stream segments": lambda: FakeBackend(capabilities=STREAMS),
}
ON_HOST = ("cpu", "host pages", "host segments")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


@pytest.fixture(params=ON_HOST)
def host(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


class Place:
    """Where a block lies, for who looks at it once it was freed."""

    def __init__(self, memory: Memory) -> None:
        placed = place_of(memory)
        assert placed is not None
        arena, self.offset, self.nbytes = placed
        assert arena is not None
        self._reservation = reserved_place(arena, 0)[0]
        self._backend = parts_of(memory.pool).backend.backend

    def content(self) -> set[int]:
        """Return the values that are in it now."""
        found = bytearray(self.nbytes)
        if self._reservation.address is not None:
            at = self._reservation.address + self.offset
            found[:] = ctypes.string_at(at, self.nbytes)
        else:
            cast("CopyBackend", self._backend).copy_to_host(
                self._reservation, self.offset, memoryview(found)
            )
        return set(found)


def filled(pool: Pool, nbytes: int = 5 * KIB, **options: object) -> Memory:
    memory = pool.allocate(nbytes, **options)  # type: ignore[arg-type]  # stream or tag
    memory.fill(7)
    return memory


@pytest.mark.parametrize("alignment", [None, 32 * KIB])
def test_what_is_handed_out_is_zero(backend: Backend, alignment: int | None) -> None:
    pool = Pool(backend, zero=True)
    fresh = set(pool.allocate(5 * KIB, alignment=alignment).tobytes())
    filled(pool).free()

    again = pool.allocate(5 * KIB, alignment=alignment)

    assert (fresh, set(again.tobytes())) == ({0}, {0})
    pool.check()


@pytest.mark.parametrize("zero", [True, "free"])
@pytest.mark.parametrize("limit", [None, 300 * KIB])
def test_nobody_finds_what_was_freed(
    backend: Backend, zero: Zero, limit: int | None
) -> None:
    pool = Pool(backend, limit=limit, zero=zero)
    draw = random.Random(5)
    live: list[Memory] = []

    for step in range(250):
        try:
            memory = pool.allocate(draw.choice((1, 600, 5000, 30_000, 70_000)))
        except OutOfMemoryError:
            live.clear()
            continue
        assert set(memory.tobytes()) <= ({0} if zero is True else {0, GARBAGE})
        memory.fill(7)
        live.append(memory)
        if draw.random() < 0.6:
            live.pop(draw.randrange(len(live))).free()
        if step % 50 == 0:
            pool.trim(draw.choice((0, 64 * KIB)))
            pool.check()
    live.clear()
    pool.close()


def test_host_memory_is_wiped_when_free_returns(host: Backend) -> None:
    pool = Pool(host, zero="free")
    memory = filled(pool)
    place = Place(memory)

    memory.free()

    assert place.content() == {0}
    assert pool.stats().live_nbytes == 0


@pytest.mark.parametrize("how", ["dropped", "tagged", "resized", "slice", "large"])
def test_whatever_frees_it(host: Backend, how: str) -> None:
    pool = Pool(host, zero="free")
    size = 100 * KIB if how == "large" else 5 * KIB
    memory = filled(pool, size, tag="secrets" if how == "tagged" else None)
    place = Place(memory)

    if how == "resized":
        memory.resize(9 * KIB)
    elif how == "slice":
        part = memory[10:20]
        memory.free()
        del part
    elif how == "dropped":
        del memory
    else:
        memory.free()

    assert place.content() == {0}


def test_views_keep_the_content_until_the_last_is_gone(host: Backend) -> None:
    pool = Pool(host, zero="free")
    memory = filled(pool)
    place, array = Place(memory), memory.as_array("uint8")
    memory.free()
    seen = place.content()

    del array

    assert (seen, place.content()) == ({7}, {0})


def test_a_closed_pool_wipes_what_is_freed_later() -> None:
    pool = Pool(BACKENDS["host pages"](), zero="free")
    neighbour, memory = filled(pool), filled(pool)
    place = Place(memory)
    pool.close()
    pool.close()

    memory.free()

    assert place.content() == {0}  # its page is there for the neighbour
    assert set(neighbour.tobytes()) == {7}


def test_a_call_within_a_call_is_wiped_as_well() -> None:
    pool = Pool(BACKENDS["host pages"](), zero="free")

    def handler() -> set[int]:  # that allocates
        memory = filled(pool)
        place = Place(memory)
        memory.free()
        return place.content()

    assert parts_of(pool).lock.hold(handler) == {0}


def test_a_free_does_not_call_the_device_and_trim_wipes() -> None:
    backend = FakeBackend(capabilities=STREAMS | MOVED)
    pool = Pool(backend, zero="free")
    neighbour, memory = filled(pool), filled(pool)
    place, calls = Place(memory), len(backend.calls)

    memory.free()
    asked = len(backend.calls) - calls
    before = place.content()
    pool.trim(keep=PAGE)

    assert (asked, before, place.content()) == (0, {7}, {0})
    assert set(neighbour.tobytes()) == {7}


def test_it_is_wiped_behind_the_work_of_its_stream() -> None:
    backend = FakeBackend(capabilities=STREAMS | MOVED)
    pool = Pool(backend, zero="free")
    stream = backend.make_stream()
    memory = pool.allocate(5 * KIB, stream=stream)
    place = Place(memory)
    memory.copy_from(b"\7" * memory.nbytes, stream=stream)
    memory.free()
    found = bytearray(5 * KIB)

    again = pool.allocate(5 * KIB, stream=stream)
    again.copy_to(found, stream=stream)
    stream.pump()

    assert set(found) == {0}
    assert place.content() == {0}


def test_it_is_not_wiped_while_another_stream_reads() -> None:
    backend = FakeBackend(capabilities=STREAMS | MOVED)
    pool = Pool(backend, zero="free")
    reader = backend.make_stream()
    neighbour, memory = filled(pool), filled(pool)
    place, found = Place(memory), bytearray(5 * KIB)
    memory.copy_to(found, stream=reader)
    memory.free()
    other = pool.allocate(5 * KIB)
    before = place.content()

    reader.pump()
    pool.trim(keep=PAGE)

    assert (before, set(found), place.content()) == ({7}, {7}, {0})
    assert Place(other).offset not in (place.offset, Place(neighbour).offset)


def test_a_block_among_those_of_another_stream_is_wiped_for_whoever_is_next() -> None:
    backend = FakeBackend(capabilities=STREAMS | PAGES)
    pool = Pool(backend, limit=128 * KIB, zero="free")
    owner, guest, reader = (backend.make_stream() for _ in range(3))
    pool.allocate(100 * KIB, stream=owner).free()
    owner.queue(lambda: None)  # busy, so its pages are not taken away
    memory = pool.allocate(100 * KIB, stream=guest)
    memory.copy_from(b"\7" * memory.nbytes, stream=guest)
    memory.free()
    guest.pump()
    owner.queue(lambda: None)
    found = bytearray(100 * KIB)

    pool.allocate(100 * KIB, stream=reader).copy_to(found, stream=reader)
    reader.pump()

    assert set(found) == {0}


@pytest.mark.parametrize("zero", [True, "free"])
def test_a_device_that_fails_to_wipe_hands_out_nothing(zero: Zero) -> None:
    backend = FakeBackend(capabilities=STREAMS | MOVED)
    pool = Pool(backend, zero=zero)
    neighbour, memory = pool.allocate(5 * KIB), pool.allocate(5 * KIB)
    memory.fill(7)
    memory.free()
    backend.fail(Fault(1, lasts=True))

    with pytest.raises(BackendCallError):
        pool.allocate(5 * KIB)
    backend.recover()
    pool.check()
    again = pool.allocate(5 * KIB)

    assert set(again.tobytes()) <= {0, GARBAGE}
    assert pool.stats().live_nbytes == 10 * KIB
    assert neighbour.nbytes == 5 * KIB


class Seen(FakeBackend):
    """Looks at what is taken from it: whose values are still there."""

    left: set[int] = set()  # noqa: RUF012  # each test has one

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        self._look(reservation, offset, nbytes)
        super().decommit(reservation, offset, nbytes)

    def release(self, reservation: Reservation) -> None:
        if Capability.COMMIT not in self.capabilities:
            self.finish()  # as the protocol has it
            self._look(reservation, 0, reservation.nbytes)
        super().release(reservation)

    def _look(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        at = self._addresses[reservation.native] + offset
        self.left = self.left | set(ctypes.string_at(at, nbytes))


@pytest.mark.parametrize("how", ["trim", "close"])
@pytest.mark.parametrize("capabilities", [STREAMS | MOVED, STREAMS])
def test_the_device_gets_nothing_back_that_is_not_wiped(
    capabilities: Capability, how: str
) -> None:
    backend = Seen(capabilities=capabilities)
    pool = Pool(backend, zero="free")
    reader = backend.make_stream()
    memory = filled(pool)
    memory.copy_to(bytearray(5 * KIB), stream=reader)
    memory.free()

    if how == "trim":
        reader.pump()
        pool.trim()
    else:
        pool.close()  # while the reader is not done

    assert not backend.reservations
    assert backend.left <= {0, GARBAGE}


def test_a_trim_waits_until_a_stream_has_wiped_what_it_takes() -> None:
    backend = Seen(capabilities=STREAMS | MOVED)
    pool = Pool(backend, zero="free")
    owner, reader = backend.make_stream(), backend.make_stream()
    memory = pool.allocate(5 * KIB, stream=owner)
    memory.copy_from(b"\7" * memory.nbytes, stream=owner)
    memory.copy_to(bytearray(5 * KIB), stream=reader)
    memory.free()

    pool.trim()

    assert pool.stats().committed_nbytes == 0
    assert backend.left <= {0, GARBAGE}


class Capturing(FakeBackend):
    """Captures a graph when it is told to."""

    is_in_capture = False

    def is_capturing(self, stream: object) -> bool:
        return self.is_in_capture


def test_nothing_is_wiped_by_a_graph() -> None:
    backend = Capturing(capabilities=STREAMS | Capability.CAPTURE)
    pool = Pool(backend, zero="free")
    neighbour, memory = filled(pool), filled(pool)
    place = Place(memory)
    memory.free()
    backend.is_in_capture = True
    other = pool.allocate(5 * KIB)
    during = place.content()
    backend.is_in_capture = False

    pool.trim(keep=64 * KIB)

    assert (during, place.content()) == ({7}, {0})
    assert Place(other).offset not in (place.offset, Place(neighbour).offset)


def test_a_graph_cannot_be_handed_zeros() -> None:
    backend = Capturing(capabilities=STREAMS | Capability.CAPTURE)
    pool = Pool(backend, zero=True)
    backend.is_in_capture = True

    with pytest.raises(MissingCapabilityError, match="way to zero memory while"):
        pool.allocate(5 * KIB)

    assert pool.stats().live_nbytes == 0
    pool.check()


@pytest.mark.parametrize("zero", [True, "free"])
def test_no_block_waits_in_a_bin(zero: Zero) -> None:
    pool = Pool(BACKENDS["host pages"](), zero=zero)
    filled(pool).free()

    pool.trim(keep=PAGE)

    assert pool.stats().cached_nbytes == 0
    assert pool.zero == zero


def test_memory_of_one_process_after_another_is_wiped() -> None:
    try:
        pool = Pool("shared", zero="free")
    except madl.BackendNotFoundError as error:
        pytest.skip(str(error))
    memory = filled(pool)
    attached = madl.share(memory).attach()

    memory.free()

    assert set(attached.tobytes()) == {0}


def test_zero_bytes_need_no_zeros(backend: Backend) -> None:
    pool = Pool(backend, zero=True)

    assert pool.allocate(0).nbytes == 0


@pytest.mark.parametrize("zero", [True, "free"])
def test_a_pool_ends_with_its_last_reference(zero: Zero) -> None:
    backend = FakeBackend(capabilities=HOST | MOVED)
    pool = Pool(backend, zero=zero)
    filled(pool).free()
    gc.disable()
    try:
        del pool
        left = len(backend.reservations)
    finally:
        gc.enable()

    assert left == 0
