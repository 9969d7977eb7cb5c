"""Debug mode: what is written outside a block, or into a freed one, is found."""

import ctypes
import gc
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import madl
from madl import (
    BackendCallError,
    Memory,
    MemoryCorruptionError,
    MissingCapabilityError,
    OutOfMemoryError,
    Pool,
)
from madl.backends.counted import CountedBackend
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Capability, Reservation
from madl.backends.sim import SimBackend
from madl.errors.damage import OVERRUN, UNDERRUN, USE_AFTER_FREE, Damage
from madl.memory.place import locate, reserved_place
from madl.pool.allocate import parts_of
from madl.pool.debug.options import DebugOptions
from madl.pool.debug.patterns import FREED, FRESH, FRONT_NBYTES
from madl.pool.options import Zero
from madl.testing import FakeBackend, Fault

KIB = 1024
MIB = 1024 * KIB

DEVICE = (
    Capability.COMMIT
    | Capability.REMAP
    | Capability.COPY
    | Capability.FILL
    | Capability.STREAM_ORDERED
)


class Target:
    """A pool in debug mode, and a way to write anywhere around its blocks."""

    def __init__(self, backend: FakeBackend | None) -> None:
        self.backend = backend
        self.pool = Pool("cpu" if backend is None else backend, debug=True)

    def place(self, memory: Memory) -> tuple[Reservation, int]:
        """Return where a memory starts, which is of use when it is freed too."""
        arena, offset = locate(memory, "a test")
        assert arena is not None
        return reserved_place(arena, offset)

    def write(self, place: tuple[Reservation, int], first: int, content: bytes) -> None:
        """Write bytes, from the start of the memory that was at a place."""
        reservation, start = place
        if self.backend is None:
            assert reservation.address is not None
            ctypes.memmove(reservation.address + start + first, content, len(content))
        else:
            self.backend.finish()
            source = memoryview(content)
            self.backend.copy_from_host(reservation, start + first, source)


@pytest.fixture(params=["host", "device"])
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "host":
        return Target(None)
    return Target(FakeBackend(capabilities=DEVICE, total_nbytes=64 * MIB))


@pytest.fixture
def pool() -> Pool:
    return Pool("cpu", debug=True)


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``sys.unraisablehook`` is told."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: seen.append(told.exc_value))
    return seen


def damage_of(call: Callable[[], object]) -> Damage:
    """Return the only damage that a call raises."""
    with pytest.raises(MemoryCorruptionError) as caught:
        call()
    [damage] = caught.value.damages
    return damage


@pytest.mark.parametrize(
    ("first", "kind"),
    [(1000, OVERRUN), (1020, OVERRUN), (-1, UNDERRUN), (-512, UNDERRUN)],
)
def test_a_write_beside_a_block_is_found(target: Target, first: int, kind: str) -> None:
    memory = target.pool.allocate(1000, tag="weights")
    target.write(target.place(memory), first, b"\x07")

    damage = damage_of(target.pool.check)

    assert (damage.kind, damage.first, damage.stop) == (kind, first, first + 1)
    assert (damage.nbytes, damage.tag, damage.written) == (1000, "weights", b"\x07")
    memory.free()


def test_a_write_to_all_of_a_block_is_no_damage(target: Target) -> None:
    with target.pool.allocate(1000) as memory:
        target.write(target.place(memory), 0, b"\x07" * 1000)
        target.pool.check()

    target.pool.check()
    target.pool.close()


def test_a_write_to_a_freed_block_is_found(target: Target) -> None:
    memory = target.pool.allocate(1000)
    place = target.place(memory)
    memory.free()
    target.pool.allocate(8).free()  # on a device it is only now that a free is seen
    target.write(place, 10, b"\x07\x08")

    damage = damage_of(target.pool.check)

    assert (damage.kind, damage.first, damage.stop) == (USE_AFTER_FREE, 10, 12)


def test_a_write_to_a_freed_block_is_found_before_it_is_handed_out_again(
    target: Target,
) -> None:
    memory = target.pool.allocate(1000)
    place = target.place(memory)
    memory.free()
    target.pool.allocate(8).free()
    target.write(place, 10, b"\x07")

    target.pool.trim()
    damage = damage_of(lambda: target.pool.allocate(1000))

    assert damage.kind == USE_AFTER_FREE
    assert target.pool.stats().live_nbytes == 0


def test_damage_is_told_once(target: Target) -> None:
    memory = target.pool.allocate(1000)
    target.write(target.place(memory), 1000, b"\x07")
    damage_of(target.pool.check)

    target.pool.check()
    memory.free()
    target.pool.check()


def test_damage_names_both_lines(pool: Pool) -> None:
    memory = pool.allocate(1000)
    address = memory.address
    memory.free()
    ctypes.memset(address, 0, 1)
    line = test_damage_names_both_lines.__code__.co_firstlineno

    damage = damage_of(pool.check)

    assert [damage.allocated_at[0].number, damage.freed_at[0].number] == [
        line + 1,
        line + 3,
    ]
    assert damage.address == address


def test_a_free_raises_what_it_finds_and_frees(pool: Pool) -> None:
    memory = pool.allocate(1000)
    ctypes.memset(memory.address + 1000, 0, 4)

    damage = damage_of(memory.free)

    assert (damage.kind, memory.is_freed) == (OVERRUN, True)
    assert pool.stats().live_nbytes == 0
    pool.check()


def test_a_drop_tells_the_hook_and_the_next_allocation(
    pool: Pool, unraised: list[Any]
) -> None:
    memory = pool.allocate(1000)
    memory.memoryview()  # whoever looks at it may drop it: no warning
    ctypes.memset(memory.address + 1000, 0, 4)
    del memory

    damage = damage_of(lambda: pool.allocate(1000))

    assert [error.damages for error in unraised] == [(damage,)]
    assert pool.stats().live_nbytes == 0
    pool.check()


def test_a_dropped_handle_is_a_warning(pool: Pool) -> None:
    with pytest.warns(ResourceWarning, match=r"memory of 8 B was dropped without free"):
        pool.allocate(8)


def test_a_pool_that_is_dropped_is_looked_at(unraised: list[Any]) -> None:
    pool = Pool("cpu", debug=True)
    memory = pool.allocate(1000)
    address = memory.address
    memory.free()
    ctypes.memset(address, 0, 1)

    del memory, pool
    gc.collect()

    assert [error.damages[0].kind for error in unraised] == [USE_AFTER_FREE]


def test_close_raises_what_it_finds_and_closes(target: Target) -> None:
    memory = target.pool.allocate(1000)
    target.write(target.place(memory), 1000, b"\x07")
    memory_of_another_time = target.pool.allocate(10)

    damage = damage_of(target.pool.close)

    assert (damage.kind, target.pool.is_closed) == (OVERRUN, True)
    memory.free()
    memory_of_another_time.free()
    assert target.pool.stats().committed_nbytes == 0


def test_a_leak_check_looks_as_well(pool: Pool) -> None:
    memory = pool.allocate(1000)
    address = memory.address

    def program() -> None:
        with madl.leak_check(pool):
            memory.free()
            ctypes.memset(address, 0, 1)

    assert damage_of(program).kind == USE_AFTER_FREE


def test_content_shows_what_was_not_written_and_what_was_freed(pool: Pool) -> None:
    memory = pool.allocate(64)
    view = memory.memoryview()

    fresh = view.tobytes()
    memory.free()
    view[:4] = b"here"  # the view keeps the block, so this is its content still
    kept = view.tobytes()
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    del view

    assert (fresh, kept) == (bytes([FRESH]) * 64, b"here" + bytes([FRESH]) * 60)
    assert ctypes.string_at(address, 64) == bytes([FREED]) * 64
    pool.check()


def test_floats_that_were_not_written_are_nan() -> None:
    numpy = pytest.importorskip("numpy")

    with Pool("cpu", debug=True) as pool, madl.use_pool(pool):
        arrays = [madl.empty(8, kind) for kind in ("float16", "float32", "float64")]

    assert all(numpy.isnan(array).all() for array in arrays)


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("exponent", range(25))
def test_an_alignment_is_kept(exponent: int, pooling: bool) -> None:
    pool = Pool("cpu", debug=True, pooling=pooling)

    blocks = [pool.allocate(1000, alignment=1 << exponent) for _ in range(3)]

    assert [block.address % max(1 << exponent, 512) for block in blocks] == [0, 0, 0]
    pool.check()
    for block in blocks:
        block.free()
    pool.check()
    pool.close()


def test_statistics_count_guards_as_padding(pool: Pool) -> None:
    with pool.allocate(1000, tag="weights") as memory:
        stats = pool.stats()
        assert memory.nbytes == 1000
        assert stats.live_nbytes == 1000
        assert stats.padding_nbytes == memory.capacity - 1000
        assert stats.tags["weights"].padding_nbytes == stats.padding_nbytes

    assert pool.stats().cached_nbytes == memory_capacity_of(1000)
    assert pool.stats().tags["weights"].live_nbytes == 0


def memory_capacity_of(nbytes: int) -> int:
    return (512 + nbytes + 64 + 511) // 512 * 512


def test_a_block_comes_back_at_another_place(pool: Pool) -> None:
    first = pool.allocate(4096)
    address = first.address
    first.free()

    second = pool.allocate(4096)

    assert second.address != address
    second.free()


def test_what_is_held_back_is_bounded() -> None:
    pool = Pool("cpu", debug=True, limit="8 MiB")

    for _ in range(64):
        pool.allocate(256 * KIB).free()

    assert pool.stats().cached_nbytes <= MIB + 512 * KIB
    assert pool.stats().committed_nbytes <= 3 * MIB


def test_what_is_held_back_is_given_up_before_a_request_fails() -> None:
    pool = Pool("cpu", debug=True, limit="8 MiB")
    for _ in range(4):
        pool.allocate(250 * KIB).free()
    half = pool.allocate("4 MiB")

    pool.allocate("3.5 MiB").free()
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate("4 MiB")

    assert caught.value.report.tried[1][0] == "emptying the quarantine"
    half.free()
    pool.check()


def test_resize_keeps_content_and_guards(target: Target) -> None:
    memory = target.pool.allocate(1000)
    memory.copy_from(b"\x07" * 1000)

    memory.resize(2000)

    assert memory.tobytes()[:1000] == b"\x07" * 1000
    target.write(target.place(memory), 2000, b"\x07")
    damage = damage_of(target.pool.check)
    assert (damage.kind, damage.nbytes, damage.first) == (OVERRUN, 2000, 2000)
    memory.free()


def test_a_limit_of_a_tag_holds_after_damage(pool: Pool) -> None:
    memory = pool.allocate(1000)
    address = memory.address
    memory.free()
    ctypes.memset(address, 0, 1)
    pool.trim()

    with madl.tag("weights", limit="1 MiB"):
        with pytest.raises(MemoryCorruptionError):
            pool.allocate("1 MiB")
        pool.allocate("1 MiB").free()

    tag = pool.stats().tags["weights"]
    assert (tag.live_nbytes, tag.allocation_count) == (0, 1)


def test_memory_of_no_bytes_has_no_guards(target: Target) -> None:
    memory = target.pool.allocate(0, tag="nothing")

    assert (memory.nbytes, target.pool.stats().backend_calls) == (0, 0)
    memory.free()


def test_guards_of_a_stream_follow_its_work() -> None:
    backend = FakeBackend(capabilities=DEVICE)
    target = Target(backend)
    pool = target.pool
    stream, other = backend.make_stream(), backend.make_stream()
    memory = pool.allocate(1000, stream=stream)
    reservation, start = target.place(memory)
    memory.record_stream(other)
    backend.wait(other, backend.record(stream))
    late = memoryview(b"\x07\x07")
    backend.copy_from_host(reservation, start + 999, late, stream=other)
    memory.free()

    # It is looked at when the other stream is done with it, and not before.
    damage = damage_of(lambda: pool.allocate(1000, stream=stream))

    assert (damage.kind, damage.first, damage.stop) == (OVERRUN, 1000, 1001)
    pool.forget_stream(stream)
    pool.check()
    pool.close()
    assert backend.committed_nbytes == 0


def allocate_and_free(pool: Pool, times: int) -> None:
    for _ in range(times):
        pool.allocate(1000, tag="weights").free()


def test_a_device_that_fails_loses_no_block() -> None:
    backend = FakeBackend(capabilities=DEVICE)
    pool = Pool(backend, debug=True)
    for call in range(1, 12):
        held = pool.allocate(1000)
        held.free()
        backend.fail(Fault(call))
        with pytest.raises(BackendCallError):
            allocate_and_free(pool, 8)
        backend.recover()
        pool.check()

    assert pool.stats().live_nbytes == 0
    assert pool.stats().tags["weights"].live_nbytes == 0
    pool.close()
    assert backend.committed_nbytes == 0


@pytest.mark.parametrize("backend", [SimBackend(), FakeBackend()])
def test_a_device_without_content_refuses(backend: SimBackend | FakeBackend) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(backend, debug=True)

    assert str(caught.value) == (
        f"{backend.device} has no content that guard bytes could protect. Try: "
        "leave out debug="
    )


def test_shared_memory_refuses() -> None:
    with pytest.raises(MissingCapabilityError, match=r"memory of this process alone"):
        Pool("shared", debug=True)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADL_DEBUG", "1")


@pytest.mark.usefixtures("environment")
def test_the_environment_puts_pools_in_debug_mode() -> None:
    assert Pool("cpu").is_debugging
    assert not Pool("cpu", debug=False).is_debugging


@pytest.mark.usefixtures("environment")
def test_the_environment_changes_no_place_where_there_is_nothing_to_guard() -> None:
    pool = Pool("sim")

    memory = pool.allocate(1000)

    assert memory.capacity == 1024
    memory.free()
    again = pool.allocate(1000)
    assert pool.stats().committed_nbytes == 2 * MIB
    again.free()


@pytest.mark.parametrize("text", ["off", "0"])
def test_the_environment_may_say_no(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADL_DEBUG", text)

    assert not Pool("cpu").is_debugging


def test_another_word_in_the_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_DEBUG", "perhaps")

    with pytest.raises(ValueError, match=r"on, off or pages"):
        Pool("cpu")


def test_debug_is_a_truth_value() -> None:
    with pytest.raises(
        TypeError, match=r"^debug must be True, False, .pages. or None, got 2$"
    ):
        Pool("cpu", debug=2)  # type: ignore[arg-type]  # what is tested


def test_a_kind_of_pool_keeps_its_methods() -> None:
    class Named(Pool):
        def name(self) -> str:
            return f"pool of {self.device}"

    pool = Named("cpu", debug=True)

    assert (pool.name(), isinstance(pool, Named), pool.is_debugging) == (
        "pool of cpu",
        True,
        True,
    )
    assert not Named("cpu").is_debugging


class Late(Pool):
    """A kind of pool that asks for its mode when it has been made."""

    def __init__(self, *, debug: bool | None = None, zero: bool = False) -> None:
        super().__init__("cpu", debug=debug or not zero, zero=zero)


def test_a_kind_of_pool_may_ask_for_it_where_it_initializes_the_pool() -> None:
    assert Late().is_debugging
    assert type(Late()) is Late


def test_a_kind_of_pool_that_zeroes_is_not_in_debug_mode_by_a_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Zeroing(Pool):
        def __init__(self) -> None:
            super().__init__("cpu", zero=True)

    monkeypatch.setenv("MADL_DEBUG", "1")

    assert not Zeroing().is_debugging


def test_an_allocation_within_an_allocation_has_guards(pool: Pool) -> None:
    backend = parts_of(pool).backend
    inner: list[Memory] = []
    reserve = backend.reserve

    def reserve_and_allocate(nbytes: int) -> Reservation:
        backend.reserve = reserve  # type: ignore[method-assign]  # a signal handler's turn
        inner.append(pool.allocate(100, alignment=4096))
        return reserve(nbytes)

    backend.reserve = reserve_and_allocate  # type: ignore[method-assign]  # as above
    outer = pool.allocate(1000)

    assert inner[0].address % 4096 == 0
    ctypes.memset(inner[0].address + 100, 0, 1)
    assert damage_of(pool.check).nbytes == 100
    inner.pop().free()
    outer.free()


def test_threads_find_their_own_damage_and_no_other(pool: Pool) -> None:
    found: list[Damage] = []

    def note(call: Callable[[], object]) -> None:
        try:
            call()
        except MemoryCorruptionError as error:
            found.extend(error.damages)

    def work(number: int) -> None:
        for turn in range(30):
            memory = pool.allocate(100 + turn, tag=f"thread {number}")
            overrun = turn == 29  # in the last turn nobody's allocation is told of it
            ctypes.memset(memory.address, number, memory.nbytes + overrun)
            note(memory.free)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note(pool.check)

    assert sorted((one.kind, one.tag, one.nbytes) for one in found) == [
        (OVERRUN, f"thread {number}", 129) for number in range(4)
    ]


def test_an_error_of_damage_is_pickled(pool: Pool) -> None:
    memory = pool.allocate(10)
    ctypes.memset(memory.address + 10, 0, 1)
    with pytest.raises(MemoryCorruptionError) as caught:
        memory.free()

    copied = pickle.loads(pickle.dumps(caught.value))

    assert str(copied) == str(caught.value)


@pytest.fixture
def paged() -> Pool:
    try:
        return Pool("cpu", debug="pages")
    except MissingCapabilityError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("exponent", [0, 9, 12, 16, 21, 23])
@pytest.mark.parametrize("nbytes", [65536, 100_000, MIB, 3 * MIB + 1])
def test_a_block_between_guard_pages_ends_close_to_the_second(
    paged: Pool, nbytes: int, exponent: int
) -> None:
    alignment = max(1 << exponent, 512)

    memory = paged.allocate(nbytes, alignment=1 << exponent)

    [arena] = paged.snapshot().arenas
    [(first, committed_nbytes)] = arena.committed_runs
    assert arena.address is not None
    end = arena.address - FRONT_NBYTES + first + committed_nbytes
    assert memory.address % alignment == 0
    assert 0 <= end - memory.address - nbytes < alignment
    memory.memoryview()[:] = b"\x07" * nbytes
    paged.check()
    memory.free()
    paged.check()
    paged.close()
    assert paged.stats().committed_nbytes == 0


def test_a_write_between_a_block_and_its_guard_page_is_found(paged: Pool) -> None:
    memory = paged.allocate(100_000)
    ctypes.memset(memory.address + 100_000, 0, 1)

    assert damage_of(memory.free).kind == OVERRUN


def test_guard_pages_are_for_host_memory() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(FakeBackend(capabilities=DEVICE), debug="pages")

    assert (
        str(caught.value) == "fake has no OS pages that guard blocks. Try: debug=True"
    )


def test_guard_pages_need_a_pool_that_places_blocks() -> None:
    with pytest.raises(ValueError, match=r"^debug='pages' needs a pool that places"):
        Pool("cpu", debug="pages", pooling=False)


def test_guard_pages_are_not_for_explicit_huge_ones() -> None:
    with pytest.raises(MissingCapabilityError, match=r"guard pages beside huge ones"):
        DebugOptions.resolve(
            CountedBackend(CpuBackend()),
            "pages",
            zero=False,
            pooling=None,
            huge_pages="explicit",
        )


@pytest.mark.parametrize("zero", [True, "free"])
def test_who_wants_zeros_wants_no_patterns(zero: Zero) -> None:
    with pytest.raises(ValueError, match=r"zero=.* so that nothing is; leave out one"):
        Pool("cpu", debug=True, zero=zero)


def test_and_is_let_alone_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADL_DEBUG", "on")

    pool = Pool("cpu", zero=True)

    assert not pool.is_debugging
    assert pool.allocate(100).tobytes() == bytes(100)


def test_the_environment_asks_for_guard_pages_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_DEBUG", "pages")

    device = Pool(FakeBackend(capabilities=DEVICE))

    assert device.is_debugging
    assert not parts_of(device).options.debug.has_guard_pages
