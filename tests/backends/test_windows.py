"""Host memory of Windows: the system's own where it runs, or else an emulated one."""

import ctypes
from collections.abc import Iterator

import pytest

from madl import Capability, Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host import windows_calls as windows
from madl.backends.host.windows import WindowsMemory
from madl.backends.host.windows_calls import WindowsCalls
from madl.backends.host.windows_reservations import SmallReservation
from madl.errors import BackendCallError, MissingCapabilityError, OutOfMemoryError
from madl.testing import BackendConformance
from tests.backends.emulated.kernel32 import calls_here

KIB, MIB = 1 << 10, 1 << 20
OS_PAGE = 4 * KIB


class TestWindows(BackendConformance):
    most_nbytes = 256 * MIB

    def make_backend(self) -> CpuBackend:
        return CpuBackend(_memory=WindowsMemory(_calls=calls_here()))


class TestWindowsInSmallPages(BackendConformance):
    most_nbytes = 256 * MIB

    def make_backend(self) -> CpuBackend:
        memory = WindowsMemory(_calls=calls_here())
        return CpuBackend(page_nbytes=64 * KIB, _memory=memory)


@pytest.fixture
def calls() -> WindowsCalls:
    return calls_here()


@pytest.fixture
def memory(calls: WindowsCalls) -> WindowsMemory:
    return WindowsMemory(_calls=calls)


@pytest.fixture
def reservation(memory: WindowsMemory) -> Iterator[SmallReservation]:
    reservation = memory.reserve(64 * MIB)
    assert isinstance(reservation, SmallReservation)
    yield reservation
    reservation.release()


def read(address: int) -> int:
    return ctypes.string_at(address, 1)[0]


def test_it_commits_and_does_not_move(memory: WindowsMemory) -> None:
    backend = CpuBackend(_memory=memory)

    assert backend.alignment == 64 * KIB
    assert Capability.COMMIT | Capability.HUGE_PAGES in backend.capabilities
    assert Capability.REMAP not in backend.capabilities


def test_what_is_committed_again_is_zero(reservation: SmallReservation) -> None:
    reservation.commit(3 * OS_PAGE, 2 * OS_PAGE)
    ctypes.memset(reservation.address + 3 * OS_PAGE, 7, 2 * OS_PAGE)

    reservation.decommit(3 * OS_PAGE, OS_PAGE)
    reservation.commit(3 * OS_PAGE, OS_PAGE)

    assert read(reservation.address + 3 * OS_PAGE) == 0
    assert read(reservation.address + 4 * OS_PAGE) == 7


def test_decommitting_nothing_decommits_nothing(reservation: SmallReservation) -> None:
    reservation.commit(0, OS_PAGE)
    ctypes.memset(reservation.address, 7, OS_PAGE)

    reservation.decommit(0, 0)

    assert read(reservation.address) == 7


def test_a_remap_exchanges_memory(reservation: SmallReservation) -> None:
    reservation.commit(0, MIB)

    reservation.remap(0, 32 * MIB, MIB)

    ctypes.memset(reservation.address + 32 * MIB, 1, MIB)


def test_a_remap_may_go_into_another_reservation(
    memory: WindowsMemory, reservation: SmallReservation
) -> None:
    other = memory.reserve(MIB)
    reservation.commit(0, MIB)

    reservation.remap(0, 0, MIB, other)

    ctypes.memset(other.address, 1, MIB)
    other.release()


def test_a_commit_past_the_end_is_no_lack_of_memory(
    calls: WindowsCalls, reservation: SmallReservation
) -> None:
    with pytest.raises(BackendCallError) as caught:
        reservation.commit(64 * MIB - OS_PAGE, 2 * OS_PAGE)

    native = caught.value.native
    assert (native.function, native.code) == ("VirtualAlloc", 487)
    assert str(caught.value) == (
        f"cpu: cannot commit 8.0 KiB: VirtualAlloc failed with 487 ({native.text})"
    )
    assert native.text.strip(" .")


def test_a_second_release_is_a_failed_call(memory: WindowsMemory) -> None:
    reservation = memory.reserve(MIB)
    reservation.release()

    with pytest.raises(
        BackendCallError, match=r"^cpu: cannot release 1\.0 MiB: Virtua"
    ):
        reservation.release()


@pytest.mark.parametrize(
    "nbytes", [1 << 47, 1 << 62, (1 << 64) - OS_PAGE, (1 << 64) + MIB, 1 << 70]
)
def test_an_impossible_reservation_is_out_of_memory(
    memory: WindowsMemory, nbytes: int
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        memory.reserve(nbytes)

    native = caught.value.report.native
    assert caught.value.requested == nbytes
    assert native is not None
    assert native.function == "VirtualAlloc"
    assert native.code in (8, 87)


def test_reserving_nothing_is_a_mistake(memory: WindowsMemory) -> None:
    with pytest.raises(BackendCallError, match="VirtualAlloc failed with 87"):
        memory.reserve(0)


def test_four_times_the_memory_can_be_reserved(memory: WindowsMemory) -> None:
    total = memory.memory_info().total_nbytes

    memory.reserve(4 * total // OS_PAGE * OS_PAGE).release()


def test_memory_info_is_plausible(memory: WindowsMemory) -> None:
    info = memory.memory_info()

    assert 64 * MIB < info.available_nbytes <= info.total_nbytes < 1 << 50


def test_describe_says_what_is_in_force(memory: WindowsMemory) -> None:
    facts = CpuBackend(_memory=memory).describe()

    assert facts["commit"] == "by VirtualAlloc, promised in full"
    assert facts["remap"] == "Windows moves no memory between addresses"
    assert {"huge pages", "commit limit", "OS page"} <= set(facts)


@pytest.mark.parametrize("huge", [None, False])
def test_large_pages_are_not_taken_unasked(
    memory: WindowsMemory, huge: bool | None
) -> None:
    memory.choose_pages(2 * MIB, huge=huge)

    reservation = memory.reserve(2 * MIB)
    assert isinstance(reservation, SmallReservation)
    reservation.release()


def test_large_pages_for_small_pages_are_refused(memory: WindowsMemory) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(CpuBackend(_memory=memory), page_size="64 KiB", huge_pages=True)

    assert str(caught.value) == (
        "cpu has no huge pages for pages of 64.0 KiB. "
        "Try: page_size='2.0 MiB', or leave out huge_pages="
    )


def test_structures_are_as_large_as_windows_has_them() -> None:
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        pytest.skip("the sizes are those of 64 bits")
    sizes = {
        windows.SystemInfo: 48,
        windows.MemoryStatus: 64,
        windows.JobLimits: 144,
        windows.JobMemoryUsage: 16,
        windows.ProcessMemory: 72,
        windows.AddressRequirements: 24,
        windows.ExtendedParameter: 16,
        windows.Privilege: 16,
    }

    assert {each: ctypes.sizeof(each) for each in sizes} == sizes
