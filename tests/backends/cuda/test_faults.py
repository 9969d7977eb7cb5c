"""Every call of the driver fails once, in every way; nothing is lost by it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import pytest

from madl import Memory, Pool
from madl.backends.cuda import CudaBackend
from madl.backends.protocol import Reservation
from madl.errors import BackendCallError, MadlError, OutOfMemoryError
from tests.backends.cuda.content import PAGE, usable
from tests.backends.cuda.emulator import (
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Emulator,
)

STATUSES = (OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS)
TAKING = {
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemHostAlloc",
    "cuMemAllocManaged",
}
TOO_LATE = {"cuCtxPopCurrent_v2", "cuMemRelease", "cuThreadExchangeStreamCaptureMode"}
"""What they fail to do, the call has no use for any more."""
FINAL = {"cuMemAddressFree", "cuMemFree_v2", "cuMemFreeHost", "cuMemFreeAsync"}
"""Once they took effect, there is nothing to be as it was before."""


class Bench(NamedTuple):
    """Two reservations of which some is committed."""

    backend: CudaBackend
    source: Reservation
    target: Reservation


OPERATIONS: dict[str, Callable[[Bench], object]] = {
    "commit": lambda it: it.backend.commit(it.source, 4 * PAGE, 3 * PAGE),
    "decommit": lambda it: it.backend.decommit(it.source, PAGE, 2 * PAGE),
    "remap": lambda it: it.backend.remap(it.source, 0, 5 * PAGE, 3 * PAGE),
    "remap into": lambda it: it.backend.remap(
        it.source, 0, PAGE, 3 * PAGE, into=it.target
    ),
    "release": lambda it: it.backend.release(it.source),
}


@contextlib.contextmanager
def open_bench(emulator: Emulator) -> Iterator[Bench]:
    """Give all back at the end; a handle is left for each release that failed."""
    backend = CudaBackend(0)
    bench = Bench(backend, backend.reserve(8 * PAGE), backend.reserve(8 * PAGE))
    backend.commit(bench.source, 0, 3 * PAGE)
    emulator.leave()
    yield bench
    emulator.recover()
    for address in list(backend._reservations):
        backend.release(Reservation(address, 8 * PAGE, address))
    left = emulator.left()
    assert left.pop("handles") in (0, kept_pages(backend)), emulator.failed()
    assert set(left.values()) == {0}, emulator.failed()
    emulator.take_handles()  # nobody else can


def check(error: MadlError, status: int, emulator: Emulator) -> None:
    """Fail unless an error is the right one for the call that failed."""
    is_refusal = status == OUT_OF_MEMORY and emulator.failed() in TAKING
    assert isinstance(error, OutOfMemoryError) == is_refusal, emulator.failed()


def kept_pages(backend: CudaBackend) -> int:
    return 0 if backend._pages is None else backend._pages.kept_nbytes // PAGE


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_call_that_fails_changes_nothing(
    operation: Callable[[Bench], object],
    status: int,
    after: bool,
    emulator: Emulator,
) -> None:
    failed: list[str] = []
    while not failed or failed[-1]:
        with open_bench(emulator) as bench:
            before = usable(emulator, bench.source, bench.target), emulator.left()
            emulator.fail(len(failed) + 1, status, after=after)
            try:
                operation(bench)
            except (BackendCallError, OutOfMemoryError) as error:
                check(error, status, emulator)
                emulator.recover()
                if after and emulator.failed() in FINAL:
                    del bench.backend._reservations[cast("int", bench.source.address)]
                    emulator.take_handles()
                else:
                    now = usable(emulator, bench.source, bench.target), emulator.left()
                    assert now == before, emulator.failed()
                    operation(bench)
            else:
                assert emulator.failed() in {"", *TOO_LATE}
            failed.append(emulator.failed())
    assert len(failed) > 5
    emulator.forget_misuses()


@pytest.mark.parametrize("memory", ["segments", "async", "pinned", "managed"])
@pytest.mark.parametrize("status", STATUSES)
def test_a_call_for_memory_in_one_piece_that_fails_changes_nothing(
    status: int, memory: str, emulator: Emulator
) -> None:
    backend = CudaBackend(0, memory=memory)
    backend.release(backend.reserve(PAGE))  # its context and its stream are made
    failed: list[str] = []
    while not failed or failed[-1]:
        emulator.leave()
        reservation = None
        emulator.fail(len(failed) + 1, status)
        try:
            reservation = backend.reserve(PAGE)
            backend.release(reservation)
        except (BackendCallError, OutOfMemoryError) as error:
            check(error, status, emulator)
            emulator.recover()
            if reservation is not None:
                backend.release(reservation)
        else:
            assert emulator.failed() in {"", *TOO_LATE}
        failed.append(emulator.failed())
        assert set(emulator.left().values()) == {0}
    assert len(failed) > 8
    emulator.forget_misuses()


def use(pool: Pool, held: list[Memory]) -> None:
    """Take and give back so that pages are committed, moved and given back."""
    for step, pages in enumerate((3, 5, 2, 7, 1, 4)):
        held.append(pool.allocate(pages * PAGE - 4096 * step))
    for index in (4, 2, 0):
        held.pop(index).free()
    held.append(pool.allocate(9 * PAGE))
    held.pop(0).free()
    pool.trim()
    held.append(pool.allocate(6 * PAGE, alignment=4 * PAGE))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("memory", ["pages", "segments", "async"])
def test_a_pool_survives_each_call_that_fails(
    memory: str, status: int, emulator: Emulator
) -> None:
    emulator.set(memory=64 * PAGE)
    CudaBackend(0, memory=memory).memory_info()  # the context is made
    number, failures = 0, 1
    while failures:
        number += 1
        emulator.leave()
        backend = CudaBackend(0, memory=memory)
        pool, held = Pool(backend), list[Memory]()
        emulator.fail(number, status)
        try:
            use(pool, held)
        except MadlError:
            pool.check()
        failures = len(emulator.failed())
        emulator.recover()
        pool.check()

        use(pool, held)  # whatever happened: it goes on

        pool.check()
        held.clear()
        pool.close()
        left = emulator.left()
        assert left.pop("handles") == kept_pages(backend), emulator.failed()
        assert set(left.values()) == {0}, emulator.failed()
        emulator.take_handles()
    assert number > 25
    emulator.forget_misuses()
