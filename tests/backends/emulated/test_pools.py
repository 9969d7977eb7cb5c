"""Whole pools on emulated systems: the suites that the simplest device passes."""

import ctypes
import errno
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from madl import Memory, Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host import HostMemory
from madl.backends.protocol import Reservation
from madl.errors import BackendCallError, OutOfMemoryError
from madl.pool.options import Fit
from tests.backends.emulated.posix import OS_PAGES, Posix, open_memory
from tests.backends.walk import Walk, steps
from tests.property.pool_model import PoolModel, Setting, random_step

KIB, MIB = 1 << 10, 1 << 20


class MeasuredBackend(CpuBackend):
    """A host that adds up what is committed."""

    def __init__(self, memory: HostMemory) -> None:
        super().__init__(_memory=memory)
        self._pieces: dict[int, int] = {}

    @property
    def committed_nbytes(self) -> int:
        """Bytes that are committed now."""
        return sum(self._pieces.values())

    def reserve(self, nbytes: int) -> Reservation:
        """Reserve, with nothing committed."""
        reservation = super().reserve(nbytes)
        self._pieces[reservation.address or 0] = 0
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Release, and forget what is committed of it."""
        super().release(reservation)
        del self._pieces[reservation.address or 0]

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Commit, and write to all of it."""
        super().commit(reservation, offset, nbytes)
        address = reservation.address or 0
        self._pieces[address] += nbytes
        ctypes.memset(address + offset, 0xA5, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Decommit."""
        super().decommit(reservation, offset, nbytes)
        self._pieces[reservation.address or 0] -= nbytes

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Move, and write to all of it."""
        target = reservation if into is None else into
        super().remap(reservation, source, destination, nbytes, into=into)
        self._pieces[reservation.address or 0] -= nbytes
        self._pieces[target.address or 0] += nbytes
        ctypes.memset((target.address or 0) + destination, 0x5A, nbytes)


@dataclass(frozen=True)
class EmulatedSetting(Setting):
    """The options of a pool on an emulated system."""

    memory: HostMemory = field(kw_only=True)

    def make_backend(self) -> MeasuredBackend:  # type: ignore[override]  # as the others
        """Return a new device."""
        return MeasuredBackend(self.memory)


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 1 << 30), length=st.integers(1, 60), recycle=st.booleans())
def test_a_pool_agrees_with_the_plainest_account_of_it(
    posix: Posix, memory: HostMemory, seed: int, length: int, recycle: bool
) -> None:
    setting = EmulatedSetting(limit=3 * MIB, recycle=recycle, memory=memory)
    draw = random.Random(seed)
    model = PoolModel(setting)

    for _ in range(length):
        random_step(model, draw)
        model.check()

    model.close()


@pytest.mark.parametrize("fit", ["first", "best"])
def test_a_pool_agrees_after_a_thousand_steps(
    posix: Posix, memory: HostMemory, fit: Fit
) -> None:
    setting = EmulatedSetting(limit=3 * MIB, fit=fit, memory=memory)
    draw = random.Random(11)
    model = PoolModel(setting)

    for step in range(1000):
        random_step(model, draw)
        if step % 25 == 0:
            model.check()

    model.close()


def test_a_walk_keeps_every_byte(posix: Posix, memory: HostMemory) -> None:
    with_pool = Pool(CpuBackend(_memory=memory), page_size=64 * KIB)
    walk = Walk(with_pool, 5)

    for step in steps(walk, 300):
        if step % 100 == 0:
            with_pool.trim(keep=4 * MIB)
        with_pool.check()

    walk.finish()
    with_pool.close()


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL])
def test_whichever_call_fails_the_pool_stays_sound(posix: Posix, code: int) -> None:
    pool = Pool(
        CpuBackend(_memory=open_memory(posix)), page_size=OS_PAGES[posix.system]
    )
    draw = random.Random(3)
    live: list[Memory] = []

    for _ in range(300):
        posix.fail(draw.randrange(1, 4), code)
        try:
            if live and draw.random() < 0.4:
                live.pop(draw.randrange(len(live))).free()
            elif draw.random() < 0.15:
                pool.trim()
            else:
                live.append(pool.allocate(draw.randrange(1, 300 * KIB)))
        except (OutOfMemoryError, BackendCallError):
            pool.check()
    posix.recover()

    pool.check()
    for memory in live:
        ctypes.memset(memory.address, 1, memory.nbytes)
        memory.free()
    pool.trim()
    assert pool.close().live_nbytes == 0


def test_a_system_out_of_ranges_answers_and_recovers(posix: Posix) -> None:
    os_page = OS_PAGES[posix.system]
    pool = Pool(CpuBackend(_memory=open_memory(posix)), page_size=os_page)
    live = [pool.allocate(os_page) for _ in range(64)]
    posix.limit_ranges(12)

    del live[::2]
    try:
        pool.trim()
        live.extend(pool.allocate(9 * os_page) for _ in range(20))
    except (OutOfMemoryError, BackendCallError):
        pool.check()
    posix.limit_ranges(4000)

    live.append(pool.allocate(40 * os_page))
    pool.check()
    live.clear()
    pool.close()
