"""A pool over a device that takes nothing on trust."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import madl
from madl import Memory, Pool
from madl.backends.protocol import Capability, Reservation
from madl.errors import FreedMemoryError, MissingCapabilityError
from madl.memory.place import locate, reserved_place
from madl.pool.allocate import parts_of
from madl.pool.tracking import Wish, wanted
from madl.sizes import ADDRESS_SPACE_NBYTES
from madl.stacks import Stack
from madl.testing import FakeBackend as ClaimingBackend
from tests.fakes import ALIGNMENT, FakeBackend, Fault

KIB = 1024
PAGE = 16 * KIB


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def pool(backend: FakeBackend) -> Iterator[Pool]:
    pool = Pool(backend)
    yield pool
    pool.check()


def figures(pool: Pool) -> tuple[int, int, int]:
    """Return what an error must not change."""
    stats = pool.stats()
    return stats.live_nbytes, stats.committed_nbytes, stats.allocation_count


def test_nothing_is_taken_before_the_first_allocation(backend: FakeBackend) -> None:
    Pool(backend)

    assert backend.calls == []


def test_memory_knows_what_was_asked_and_what_was_given(pool: Pool) -> None:
    memory = pool.allocate(1000)

    assert (memory.nbytes, memory.capacity, len(memory)) == (1000, 1024, 1000)
    assert (memory.pool, memory.device) == (pool, "fake")


def test_a_size_may_be_a_text(pool: Pool) -> None:
    assert pool.allocate("1.5 KiB").nbytes == 1536


def test_the_pages_under_a_block_are_committed(
    pool: Pool, backend: FakeBackend
) -> None:
    memory = pool.allocate(PAGE + 1)

    assert backend.is_committed_at(memory.address, memory.capacity)
    assert backend.committed_nbytes == 2 * PAGE


def test_blocks_share_a_page(pool: Pool, backend: FakeBackend) -> None:
    held = [pool.allocate(PAGE // 8) for _ in range(8)]

    assert len({memory.address for memory in held}) == 8
    assert backend.committed_nbytes == PAGE


@pytest.mark.parametrize("shift", range(20))
def test_an_address_is_aligned_as_asked(pool: Pool, shift: int) -> None:
    pool.allocate(100)

    memory = pool.allocate(3000, alignment=1 << shift)

    assert memory.address % max(1 << shift, 512) == 0


@pytest.mark.parametrize("pooling", [True, False])
def test_an_address_is_aligned_further_than_the_device_promises(pooling: bool) -> None:
    backend = FakeBackend()
    pool = Pool(backend, pooling=pooling)

    memory = pool.allocate(3000, alignment=8 * backend.alignment)

    assert memory.address % (8 * backend.alignment) == 0
    assert backend.is_committed_at(memory.address, memory.capacity)
    pool.check()


class Odd(ClaimingBackend):
    """A device without addresses, which knows where memory starts or does not."""

    knows = True

    def reserve(self, nbytes: int) -> Reservation:
        made = super().reserve(nbytes)
        known = made._replace(address=None, base=made.base if self.knows else None)
        self.reservations[self._known(made)] = known
        return known


def start_of(memory: Memory, backend: Odd) -> int:
    """Return where a memory is, which the device does not tell its user."""
    arena, offset = locate(memory, "a test")
    assert arena is not None
    reservation, inside = reserved_place(arena, offset)
    assert reservation.base is not None
    return reservation.base + inside


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("capabilities", [Capability.COMMIT, Capability.FILL])
def test_alignment_counts_from_where_the_device_has_the_memory(
    capabilities: Capability, pooling: bool, debug: bool
) -> None:
    backend = Odd(capabilities=capabilities | Capability.COPY | Capability.FILL)
    with Pool(backend, pooling=pooling, debug=debug) as pool:
        for alignment in (None, 512, ALIGNMENT, 2 * ALIGNMENT, 16 * ALIGNMENT):
            held = [pool.allocate(1000 * n, alignment=alignment) for n in (1, 3)]

            for memory in held:
                assert start_of(memory, backend) % (alignment or 512) == 0
                memory.free()
        pool.check()


@pytest.mark.parametrize("pooling", [True, False])
def test_alignment_is_refused_where_it_is_not_known_what_it_counts_from(
    pooling: bool,
) -> None:
    backend = Odd()
    backend.knows = False
    pool = Pool(backend, pooling=pooling)
    pool.allocate(3000, alignment=backend.alignment).free()
    pool.trim()

    with pytest.raises(MissingCapabilityError) as caught:
        pool.allocate(3000, alignment=2 * backend.alignment)

    assert str(caught.value) == (
        f"fake has no alignment of {2 * backend.alignment} bytes: it does not tell "
        "where memory starts. Try: leave out alignment="
    )
    assert backend.committed_nbytes == pool.stats().committed_nbytes == 0
    pool.check()


def test_a_freed_aligned_block_is_free_for_all(pool: Pool) -> None:
    pool.allocate(3000, alignment=4096).free()

    pool.trim()

    assert pool.stats().reserved_nbytes == 0


def test_zero_bytes_are_a_valid_handle_that_takes_nothing(
    pool: Pool, backend: FakeBackend
) -> None:
    memory = pool.allocate(0)

    assert (memory.nbytes, memory.capacity, memory.address) == (0, 0, 0)
    assert backend.calls == []


def test_zero_bytes_are_freed_like_any_memory(pool: Pool) -> None:
    memory = pool.allocate(0)
    held = pool.allocate(0)

    memory.free()

    assert (memory.is_freed, held.is_freed) == (True, False)
    with pytest.raises(FreedMemoryError):
        memory.free()


@pytest.mark.parametrize(
    ("nbytes", "error", "text"),
    [
        (-3, ValueError, "nbytes must not be negative, got -3"),
        (
            "64 mb/s",
            ValueError,
            "nbytes must be a byte count such as '64 MiB', '64MB' or '4096', "
            "got '64 mb/s'",
        ),
        (
            True,
            TypeError,
            "nbytes must be an int or a text such as '64 MiB', got True (bool)",
        ),
        (
            1.5,
            TypeError,
            "nbytes must be an int or a text such as '64 MiB', got 1.5 (float)",
        ),
        (
            ADDRESS_SPACE_NBYTES,
            OverflowError,
            f"nbytes must fit the address space, got {ADDRESS_SPACE_NBYTES} "
            f"of at most {ADDRESS_SPACE_NBYTES - 1}",
        ),
    ],
)
def test_what_is_no_byte_count_is_refused(
    pool: Pool, nbytes: int, error: type[Exception], text: str
) -> None:
    pool.allocate(100)
    before = figures(pool)

    with pytest.raises(error) as caught:
        pool.allocate(nbytes)

    assert str(caught.value) == text
    assert figures(pool) == before


def test_an_alignment_is_a_power_of_two(pool: Pool) -> None:
    with pytest.raises(ValueError, match="power of two") as caught:
        pool.allocate(100, alignment=48)

    assert str(caught.value) == "alignment must be a power of two, got 48"


def test_a_device_without_streams_refuses_one(pool: Pool) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        pool.allocate(100, stream=1)

    assert str(caught.value) == "fake has no streams. Try: allocate without stream="


def test_freed_memory_is_handed_out_again(pool: Pool, backend: FakeBackend) -> None:
    pool.allocate(5000).free()
    calls = len(backend.calls)

    for _ in range(100):
        pool.allocate(5000).free()

    assert len(backend.calls) == calls
    assert backend.committed_nbytes == PAGE


def test_a_freed_block_is_handed_out_once(pool: Pool) -> None:
    pool.allocate(1000).free()

    held = [pool.allocate(1001), pool.allocate(1002), pool.allocate(1000)]

    assert len({memory.address for memory in held}) == 3


def test_freed_neighbours_serve_a_larger_block(
    pool: Pool, backend: FakeBackend
) -> None:
    held = [pool.allocate(PAGE // 4) for _ in range(16)]
    for memory in held:
        memory.free()

    pool.allocate(4 * PAGE)

    assert backend.committed_nbytes == 4 * PAGE


def test_memory_is_freed_once(pool: Pool) -> None:
    memory = pool.allocate(100)
    memory.free()

    with pytest.raises(FreedMemoryError) as caught:
        memory.free()

    assert str(caught.value) == (
        "fake: free() on memory of 100 B that was freed. Try: keep the Memory until "
        "its last use, or copy what is needed before free()"
    )


def test_a_dropped_handle_is_a_free(pool: Pool) -> None:
    memory = pool.allocate(100)

    del memory
    gc.collect()

    assert pool.stats().live_nbytes == 0


def test_leaving_a_with_block_is_a_free(pool: Pool) -> None:
    with pool.allocate(100) as memory:
        assert pool.stats().live_nbytes == 100

    assert memory.is_freed
    assert pool.stats().live_nbytes == 0


def test_a_free_never_calls_the_device(pool: Pool, backend: FakeBackend) -> None:
    held = [pool.allocate(4 * PAGE) for _ in range(8)]
    calls = len(backend.calls)

    for memory in held:
        memory.free()

    assert len(backend.calls) == calls


def test_trim_gives_back_what_is_idle(pool: Pool, backend: FakeBackend) -> None:
    kept, freed = pool.allocate(PAGE), pool.allocate(4 * PAGE)
    freed.free()

    assert pool.trim() == 4 * PAGE
    assert backend.committed_nbytes == PAGE
    assert backend.is_committed_at(kept.address, kept.capacity)


def test_trim_keeps_as_much_as_it_is_told(pool: Pool, backend: FakeBackend) -> None:
    pool.allocate(8 * PAGE).free()

    assert pool.trim(keep=3 * PAGE) == 5 * PAGE
    assert backend.committed_nbytes == 3 * PAGE


def test_trim_releases_an_arena_that_is_wholly_free(
    pool: Pool, backend: FakeBackend
) -> None:
    pool.allocate(8 * PAGE).free()

    pool.trim()

    assert backend.reservations == {}
    assert pool.allocate(100).nbytes == 100


def test_trim_takes_a_byte_count(pool: Pool) -> None:
    with pytest.raises(ValueError, match="keep") as caught:
        pool.trim(-1)

    assert str(caught.value) == "keep must not be negative, got -1"


def test_close_reports_what_is_live(pool: Pool) -> None:
    held = [
        pool.allocate(100, tag="few"),
        pool.allocate(5000, tag="many"),
        pool.allocate(300),
    ]

    closed = pool.close()

    assert (closed.live_count, closed.live_nbytes) == (3, 5400)
    assert closed.tags == (("many", 5000), (None, 300), ("few", 100))
    assert pool.is_closed
    assert not any(memory.is_freed for memory in held)


def test_close_gives_back_what_is_idle_at_once(
    pool: Pool, backend: FakeBackend
) -> None:
    held = pool.allocate(100)
    pool.allocate(8 * PAGE).free()

    pool.close()

    assert backend.committed_nbytes == PAGE
    assert backend.is_committed_at(held.address, held.capacity)


def test_a_free_waits_for_no_one_who_is_in_a_closed_pool(
    pool: Pool, backend: FakeBackend
) -> None:
    memory = pool.allocate(100)
    pool.close()

    with parts_of(pool).shared.lock:
        memory.free()
        assert backend.reservations != {}
    pool.stats()

    assert backend.reservations == {}


def test_a_closed_pool_gives_the_rest_back_with_the_last_block(
    pool: Pool, backend: FakeBackend
) -> None:
    first, last = pool.allocate(100), pool.allocate(100)
    pool.close()

    first.free()
    assert backend.reservations != {}
    last.free()

    assert backend.reservations == {}


@pytest.mark.parametrize("nbytes", [1000, 64 * PAGE])
def test_a_closed_pool_allocates_nothing(pool: Pool, nbytes: int) -> None:
    held = pool.allocate(100)  # its page is committed, and most of it is free
    pool.close()

    with pytest.raises(ValueError, match="closed") as caught:
        pool.allocate(nbytes)

    assert str(caught.value) == (
        "a closed pool of fake allocates nothing; make a new Pool"
    )
    assert pool.stats().live_nbytes == held.nbytes


def test_close_may_be_called_twice(pool: Pool) -> None:
    held = pool.allocate(100)

    assert pool.close() == pool.close()
    assert not held.is_freed


def test_leaving_the_with_block_of_a_pool_closes_it(backend: FakeBackend) -> None:
    with Pool(backend) as pool:
        pool.allocate(100)

    assert pool.is_closed
    assert backend.reservations == {}


def test_a_dropped_pool_gives_everything_back(backend: FakeBackend) -> None:
    pool = Pool(backend)
    pool.allocate(100).free()

    del pool
    gc.collect()

    assert backend.reservations == {}


def test_a_free_after_close_does_not_raise_when_the_device_fails(
    backend: FakeBackend,
) -> None:
    pool = Pool(backend)
    memory = pool.allocate(100)
    pool.close()
    backend.fail(Fault(1, lasts=True))

    memory.free()
    backend.recover()

    del memory
    pool.close()
    assert backend.reservations == {}


def test_a_listener_that_raises_changes_nothing(pool: Pool) -> None:
    class Broken:
        def allocated(
            self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
        ) -> int:
            raise OSError("no space left")

        def freed(self, allocation_id: int) -> None:
            raise AssertionError("it never heard of an allocation")

    broken = Broken()
    pool.allocate(100, tag="t").free()
    before = figures(pool)[:2], pool.stats().tags

    with wanted(Wish(listener=broken)), pytest.raises(OSError, match="no space left"):
        pool.allocate(100, tag="t")

    assert (figures(pool)[:2], pool.stats().tags) == before


def test_a_tag_is_a_text(pool: Pool) -> None:
    with pytest.raises(TypeError) as caught:
        pool.allocate(100, tag=7)  # type: ignore[arg-type]  # as users do

    assert str(caught.value) == "tag must be a text, got 7 (int)"


def test_a_tag_is_counted(pool: Pool) -> None:
    kept = pool.allocate(1000, tag="weights")
    pool.allocate(500, tag="weights").free()

    usage = pool.stats().tags["weights"]

    assert kept.tag == "weights"
    assert (usage.live_nbytes, usage.live_high_water_nbytes) == (1000, 1500)
    assert (usage.allocation_count, usage.free_count, usage.padding_nbytes) == (
        2,
        1,
        24,
    )


def test_tags_in_context_join(pool: Pool) -> None:
    with madl.tag("model"), madl.tag("encoder"):
        memory = pool.allocate(100)

    assert memory.tag == "model/encoder"
    assert pool.allocate(100).tag is None


def test_without_pooling_every_allocation_is_its_own_reservation() -> None:
    backend = FakeBackend()
    pool = Pool(backend, pooling=False)

    memories = [pool.allocate(5000), pool.allocate(5000)]

    assert len(backend.reservations) == 2
    assert backend.committed_nbytes == 4 * 4096
    del memories
    pool.trim()
    assert backend.reservations == {}
    pool.check()


def test_a_handle_keeps_its_pool() -> None:
    memory: Memory = Pool(FakeBackend()).allocate(100)

    gc.collect()

    assert memory.pool.stats().live_nbytes == 100


class InterruptedBackend(FakeBackend):
    """A device during whose first commit a signal handler runs."""

    handler: Callable[[], None] | None = None

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        super().commit(reservation, offset, nbytes)
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()


@pytest.mark.parametrize("alignment", [None, 4096, 4 * ALIGNMENT])
def test_an_allocation_within_an_allocation_gets_its_own_reservation(
    alignment: int | None,
) -> None:
    backend = InterruptedBackend()
    pool = Pool(backend)
    inner: list[Memory] = []
    backend.handler = lambda: inner.append(pool.allocate(100, alignment=alignment))

    outer = pool.allocate(5000)

    assert len(backend.reservations) == 2
    assert inner[0].address % (alignment or ALIGNMENT) == 0
    assert pool.stats().live_nbytes == 5100
    pool.check()
    inner.pop().free()
    pool.trim()
    assert (len(backend.reservations), outer.is_freed) == (1, False)


def test_nothing_else_may_be_done_within_an_allocation() -> None:
    backend = InterruptedBackend()
    pool = Pool(backend)
    texts: list[str] = []

    def look() -> None:
        with pytest.raises(RuntimeError) as caught:
            pool.stats()
        texts.append(str(caught.value))

    backend.handler = look

    pool.allocate(100)

    assert texts == [
        "<madl.Pool on fake: 0 bytes live> is in the middle of a call of this thread; "
        "signal handlers and finalizers may allocate and free, nothing else"
    ]


@pytest.mark.parametrize("wrong", [5, None, b"cpu"])
def test_a_pool_is_of_a_device_or_a_backend(wrong: Any) -> None:  # noqa: ANN401  # a user's
    with pytest.raises(TypeError, match="device must be a name such as 'cpu'"):
        Pool(wrong)


def test_pooling_is_a_choice_of_two() -> None:
    with pytest.raises(TypeError, match="pooling must be True, False or None"):
        Pool("sim", pooling="off")  # type: ignore[arg-type]  # a user's


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_pool_is_neither_pickled_nor_copied(
    pool: Pool, copied: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError) as caught:
        copied(pool)

    assert str(caught.value) == (
        "a Pool of fake cannot be pickled or copied; make another one: Pool('fake')"
    )
