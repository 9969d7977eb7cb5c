"""What C programs do wrong, and what the C functions make of it."""

import ctypes
import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from madl import Memory, MissingCapabilityError, Pool
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Reservation
from madl.pool.allocate import parts_of

native = pytest.importorskip("madl.native.functions")

POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
LARGEST = 2**64 - 1


class Functions(NamedTuple):
    context: int
    malloc: Callable[..., Any]
    calloc: Callable[..., Any]
    realloc: Callable[..., Any]
    free: Callable[..., Any]


def functions_of(pool: Pool) -> Functions:
    found = native.native_functions(pool)
    return Functions(
        found.context,
        ctypes.CFUNCTYPE(POINTER, POINTER, SIZE)(found.malloc),
        ctypes.CFUNCTYPE(POINTER, POINTER, SIZE, SIZE)(found.calloc),
        ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, SIZE)(found.realloc),
        ctypes.CFUNCTYPE(None, POINTER, POINTER, SIZE)(found.free),
    )


@pytest.fixture
def pool() -> Pool:
    return Pool("cpu")


@pytest.fixture
def c(pool: Pool) -> Functions:
    return functions_of(pool)


@pytest.mark.parametrize("pointer", [0, 1, 2, 512, LARGEST])
def test_unknown_pointers_are_left_alone(
    pool: Pool, c: Functions, pointer: int
) -> None:
    held = [c.malloc(c.context, 64) for _ in range(2000)]
    for address in held:  # leaves removed entries all over the table
        c.free(c.context, address, 64)

    c.free(c.context, pointer, 64)
    moved = c.realloc(c.context, pointer, 64) if pointer else None

    assert moved is None
    assert pool.stats().live_nbytes == 0
    pool.check()


def test_a_second_free_is_left_alone(pool: Pool, c: Functions) -> None:
    address = c.malloc(c.context, 64)
    c.free(c.context, address, 64)

    c.free(c.context, address, 64)

    assert pool.stats().live_nbytes == 0
    assert c.malloc(c.context, 64) != c.malloc(c.context, 64)
    pool.check()


@pytest.mark.parametrize("nbytes", [LARGEST, LARGEST >> 1, 1 << 62, 1 << 50])
def test_what_fits_no_machine_gives_null(pool: Pool, c: Functions, nbytes: int) -> None:
    kept = c.malloc(c.context, 64)

    assert c.malloc(c.context, nbytes) is None
    assert c.calloc(c.context, nbytes, 1) is None
    assert c.calloc(c.context, 1, nbytes) is None
    assert c.realloc(c.context, kept, nbytes) is None
    assert pool.stats().live_nbytes == 64
    pool.check()


@pytest.mark.parametrize("count", [2, 3, 1 << 32, (1 << 63) + 1])
def test_a_product_that_overflows_gives_null(
    pool: Pool, c: Functions, count: int
) -> None:
    assert c.calloc(c.context, count, LARGEST // count + 2) is None
    assert pool.stats().live_nbytes == 0


def test_zero_bytes_have_addresses_of_their_own(pool: Pool, c: Functions) -> None:
    address = c.malloc(c.context, 64)
    addresses = {
        c.malloc(c.context, 0),
        c.calloc(c.context, 0, 8),
        c.realloc(c.context, address, 0),
        c.realloc(c.context, None, 0),
    }

    assert None not in addresses
    assert len(addresses) == 4
    for one in addresses:
        c.free(c.context, one, 0)
    assert pool.stats().live_nbytes == 0
    pool.check()


def test_a_closed_pool_gives_null_and_takes_back(pool: Pool, c: Functions) -> None:
    address = c.malloc(c.context, 64)
    pool.close()

    assert c.malloc(c.context, 64) is None
    assert pool.stats().committed_nbytes > 0
    c.free(c.context, address, 64)
    assert pool.stats().committed_nbytes == 0
    pool.check()


def test_what_is_released_may_have_a_finalizer_that_allocates() -> None:
    allocated = []

    class Loud:
        def __del__(self) -> None:
            allocated.append(pool.allocate(512))

    class InterruptedBackend(CpuBackend):
        is_armed = False

        def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
            if self.is_armed:
                self.is_armed = False
                inside.extend(pool.allocate(5000) for _ in range(2))
            super().commit(reservation, offset, nbytes)

    backend = InterruptedBackend()
    pool = Pool(backend)
    inside: list[Memory] = []
    functions_of(pool)  # it is guarded from here on
    pool.allocate(512).free()
    backend.is_armed = True
    kept = pool.allocate(60 << 20)
    for arena in parts_of(pool).dedicated.arenas:
        arena.loud = Loud()  # type: ignore[attr-defined]
    del arena
    inside.clear()

    pool.trim()
    gc.collect()

    assert kept.nbytes == 60 << 20
    assert len(allocated) == 2
    pool.check()


@pytest.mark.parametrize("nbytes", [64, 3 << 20])
def test_what_c_frees_is_wiped(nbytes: int) -> None:
    c = functions_of(Pool("cpu", zero="free"))
    neighbour = c.malloc(c.context, 64)
    address = c.malloc(c.context, nbytes)
    ctypes.memset(address, 7, nbytes)

    c.free(c.context, address, nbytes)

    assert set(ctypes.string_at(address, nbytes)) == {0}
    c.free(c.context, neighbour, 64)


def test_c_is_handed_zeros() -> None:
    c = functions_of(Pool("cpu", zero=True))
    for _ in range(3):
        address = c.malloc(c.context, 5000)
        content = ctypes.string_at(address, 5000)
        ctypes.memset(address, 7, 5000)
        c.free(c.context, address, 5000)

        assert set(content) == {0}


def test_a_pool_in_debug_mode_is_refused() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        native.native_functions(Pool("cpu", debug=True))

    assert str(caught.value) == (
        "cpu has no guard bytes around what C functions allocate. Try: pass a pool of "
        "its own, made with debug=False"
    )
