"""Large pages of an emulated Windows: who may have them, and what becomes of them."""

import ctypes
import random
from collections.abc import Iterator

import pytest

from madl import Capability, Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host.windows import WindowsMemory
from madl.backends.host.windows_reservations import (
    LargeReservation,
    SmallReservation,
    WindowsReservation,
)
from madl.errors import BackendCallError, MissingCapabilityError, OutOfMemoryError
from tests.backends.emulated.kernel32 import Kernel32, Without, load

MIB, GIB = 1 << 20, 1 << 30
LARGE = 2 * MIB
PRIVILEGE = (
    "SeLockMemoryPrivilege: AdjustTokenPrivileges failed with 1300 "
    "(Not all privileges or groups referenced are assigned to the caller.)"
)


@pytest.fixture
def kernel32() -> Iterator[Kernel32]:
    kernel32 = load()
    yield kernel32
    assert (kernel32.reservation_count, kernel32.committed_nbytes) == (0, 0)
    assert not kernel32.library.EmuHasOpenToken()


@pytest.fixture
def memory(kernel32: Kernel32) -> WindowsMemory:
    return WindowsMemory(_calls=kernel32.calls)


@pytest.fixture
def large_memory(kernel32: Kernel32) -> WindowsMemory:
    kernel32.library.EmuGrantLockMemory()
    memory = WindowsMemory(_calls=kernel32.calls)
    memory.choose_pages(LARGE, huge=True)
    return memory


def test_large_pages_without_the_privilege_are_refused(memory: WindowsMemory) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(CpuBackend(_memory=memory), huge_pages=True)

    assert str(caught.value) == (
        f"cpu has no huge pages ({PRIVILEGE}). Try: grant the right to lock pages in "
        "memory and sign in again, or leave out huge_pages="
    )
    assert memory.describe()["huge pages"] == f"cannot be had: {PRIVILEGE}"


def test_large_pages_that_windows_has_not_got_are_refused(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    kernel32.library.EmuGrantLockMemory()
    kernel32.library.EmuSetMemory(GIB, MIB)

    with pytest.raises(MissingCapabilityError, match="VirtualAlloc2 failed with 1455"):
        memory.choose_pages(LARGE, huge=True)


def test_a_windows_before_placeholders_has_no_large_pages(kernel32: Kernel32) -> None:
    memory = WindowsMemory(_calls=Without("VirtualAlloc2", kernel32))

    with pytest.raises(MissingCapabilityError, match="in Windows 10 1803 and later"):
        memory.choose_pages(LARGE, huge=True)


@pytest.mark.parametrize("name", ["OpenProcessToken", "LookupPrivilegeValueW"])
def test_a_privilege_that_cannot_be_asked_for_is_missing(
    kernel32: Kernel32, name: str
) -> None:
    memory = WindowsMemory(_calls=Without(name, kernel32))

    with pytest.raises(MissingCapabilityError, match=rf"\({name} failed with 5 \("):
        memory.choose_pages(LARGE, huge=True)


@pytest.mark.parametrize("code", [8, 487])
def test_a_trial_that_fails_is_the_reason(kernel32: Kernel32, code: int) -> None:
    kernel32.library.EmuGrantLockMemory()
    memory = WindowsMemory(_calls=kernel32.calls)
    kernel32.fail(1, code)

    with pytest.raises(
        MissingCapabilityError, match=rf"VirtualAlloc2 failed with {code} \("
    ):
        memory.choose_pages(LARGE, huge=True)


def test_a_machine_without_large_pages_has_nothing_to_choose(
    kernel32: Kernel32,
) -> None:
    calls = Without("GetLargePageMinimum", kernel32)
    backend = CpuBackend(_memory=WindowsMemory(_calls=calls))

    assert Capability.HUGE_PAGES not in backend.capabilities
    assert backend.describe()["huge pages"] == "not in this machine"


def test_large_pages_are_declined_until_they_are_asked_for(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    kernel32.library.EmuGrantLockMemory()

    declined = memory.describe()["huge pages"]
    memory.choose_pages(LARGE, huge=True)

    assert declined == "declined"
    assert memory.describe()["huge pages"] == "asked for, 2.0 MiB"


def test_large_pages_are_committed_page_by_page(
    kernel32: Kernel32, large_memory: WindowsMemory
) -> None:
    reservation = large_memory.reserve(64 * LARGE)
    assert isinstance(reservation, LargeReservation)
    assert reservation.address % LARGE == 0

    reservation.commit(7 * LARGE, 3 * LARGE)
    ctypes.memset(reservation.address + 7 * LARGE, 1, 3 * LARGE)
    reservation.decommit(8 * LARGE, LARGE)
    reservation.commit(62 * LARGE, 2 * LARGE)
    reservation.commit(0, LARGE)
    reservation.remap(7 * LARGE, 20 * LARGE, LARGE)

    ctypes.memset(reservation.address + 20 * LARGE, 1, LARGE)
    assert kernel32.committed_nbytes == 5 * LARGE
    reservation.release()


def test_large_pages_come_and_go_in_any_order(
    kernel32: Kernel32, large_memory: WindowsMemory
) -> None:
    reservation = large_memory.reserve(32 * LARGE)
    draw = random.Random(2)
    committed: set[int] = set()

    for _ in range(400):
        page = draw.randrange(32)
        change = reservation.decommit if page in committed else reservation.commit
        change(page * LARGE, LARGE)
        committed ^= {page}
        assert kernel32.committed_nbytes == len(committed) * LARGE

    reservation.release()


def test_a_commit_of_large_pages_is_whole_or_nothing(
    kernel32: Kernel32, large_memory: WindowsMemory
) -> None:
    reservation = large_memory.reserve(8 * LARGE)
    kernel32.library.EmuSetMemory(GIB, 3 * LARGE)

    with pytest.raises(OutOfMemoryError) as caught:
        reservation.commit(0, 5 * LARGE)

    assert caught.value.requested == 5 * LARGE
    assert kernel32.committed_nbytes == 0
    reservation.release()


def test_a_decommit_of_large_pages_is_whole_or_nothing(
    kernel32: Kernel32, large_memory: WindowsMemory
) -> None:
    reservation = large_memory.reserve(8 * LARGE)
    reservation.commit(0, 5 * LARGE)
    kernel32.fail(3, 1450)

    with pytest.raises(BackendCallError):
        reservation.decommit(0, 5 * LARGE)

    assert kernel32.committed_nbytes == 5 * LARGE
    kernel32.recover()
    reservation.decommit(0, 5 * LARGE)
    assert kernel32.committed_nbytes == 0
    reservation.release()


def test_what_large_pages_do_not_fit_has_small_ones(
    large_memory: WindowsMemory,
) -> None:
    reservation = large_memory.reserve(LARGE // 2)

    reservation.commit(0, 4096)

    assert isinstance(reservation, SmallReservation)
    reservation.release()


def test_large_pages_may_fail_at_any_call(
    kernel32: Kernel32, large_memory: WindowsMemory
) -> None:
    def use(reservation: WindowsReservation) -> None:
        reservation.commit(2 * LARGE, 3 * LARGE)
        reservation.decommit(3 * LARGE, LARGE)
        reservation.remap(2 * LARGE, 6 * LARGE, LARGE)

    before = kernel32.call_count
    reservation = large_memory.reserve(8 * LARGE)
    use(reservation)
    calls = kernel32.call_count - before - 1
    reservation.release()

    for call in range(1, calls + 1):
        reservation = large_memory.reserve(8 * LARGE)
        kernel32.fail(call, 1450)
        with pytest.raises((OutOfMemoryError, BackendCallError)):
            use(reservation)
        kernel32.recover()
        reservation.release()
    assert calls > 8
