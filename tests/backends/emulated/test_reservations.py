"""What each emulated system's reservations do; the fixture counts broken rules."""

import ctypes
import errno
from contextlib import suppress

import pytest

from madl.backends.cpu import CpuBackend
from madl.backends.host import HostMemory
from madl.backends.protocol import Capability
from madl.errors import BackendCallError, MissingCapabilityError, OutOfMemoryError
from tests.backends.emulated.posix import OS_PAGES, Posix, open_memory
from tests.backends.host import resident_nbytes

MIB = 1 << 20
PAGE = 2 * MIB


def test_a_reservation_is_aligned_and_nothing_is_kept_around_it(
    posix: Posix, memory: HostMemory
) -> None:
    reservation = memory.reserve(3 * PAGE)

    assert reservation.address % (2 * MIB) == 0
    assert posix.mapped_nbytes == 3 * PAGE
    reservation.release()


def test_what_is_committed_can_be_written(posix: Posix, memory: HostMemory) -> None:
    reservation = memory.reserve(8 * PAGE)

    for _ in range(3):
        reservation.commit(PAGE, 2 * PAGE)
        ctypes.memset(reservation.address + PAGE, 7, 2 * PAGE)
        reservation.decommit(PAGE, 2 * PAGE)

    reservation.release()


def test_commits_are_of_single_os_pages(posix: Posix, memory: HostMemory) -> None:
    os_page = OS_PAGES[posix.system]
    reservation = memory.reserve(PAGE)

    for page in (0, 1, 5):
        reservation.commit(page * os_page, os_page)
        ctypes.memset(reservation.address + page * os_page, 1, os_page)
    reservation.decommit(os_page, os_page)

    assert ctypes.string_at(reservation.address, 1) == b"\x01"
    assert ctypes.string_at(reservation.address + 5 * os_page, 1) == b"\x01"
    reservation.release()


def test_recycling_within_one_and_into_another(
    posix: Posix, memory: HostMemory
) -> None:
    one, other = memory.reserve(4 * PAGE), memory.reserve(4 * PAGE)
    one.commit(0, PAGE)

    one.remap(0, 2 * PAGE, PAGE)
    ctypes.memset(one.address + 2 * PAGE, 1, PAGE)
    one.remap(2 * PAGE, PAGE, PAGE, other)
    ctypes.memset(other.address + PAGE, 1, PAGE)

    one.release()
    other.release()


def test_a_refused_reservation_leaves_nothing(posix: Posix, memory: HostMemory) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        memory.reserve(1 << 62)

    assert caught.value.requested == 1 << 62
    assert posix.mapped_nbytes == 0


@pytest.mark.parametrize("call", range(1, 8))
def test_whichever_call_of_a_reservation_fails_nothing_leaks(
    posix: Posix, memory: HostMemory, call: int
) -> None:
    if (posix.system, call) == ("android", 3):
        pytest.skip("the munmap of a probe of one OS page; nobody could do it instead")
    posix.fail(call)

    try:
        reservation = memory.reserve(3 * PAGE)
    except (OutOfMemoryError, BackendCallError):
        assert posix.mapped_nbytes == 0
    else:
        with suppress(BackendCallError):
            reservation.release()
        if posix.mapped_nbytes:
            reservation.release()


def test_a_refused_commit_changes_nothing(posix: Posix) -> None:
    if posix.system == "macos":
        pytest.skip("macOS lends more than it has and refuses no commit")
    memory = _strict(posix)
    reservation = memory.reserve(8 * PAGE)
    reservation.commit(0, PAGE)
    before = posix.usable_nbytes
    posix.limit_commit(before + PAGE)

    with pytest.raises(OutOfMemoryError) as caught:
        reservation.commit(PAGE, 2 * PAGE)

    assert posix.usable_nbytes == before
    native = caught.value.report.native
    assert native is not None
    assert (native.function, native.code) == ("mprotect", errno.ENOMEM)
    reservation.release()


def _strict(posix: Posix) -> HostMemory:
    memory = open_memory(posix)
    if posix.system == "android":
        memory._is_lazy = False  # type: ignore[attr-defined]  # of LinuxMemory
    return memory


def test_the_backend_says_what_the_system_lacks(
    posix: Posix, memory: HostMemory
) -> None:
    backend = CpuBackend(_memory=memory)

    has_remap = Capability.REMAP in backend.capabilities

    assert Capability.COMMIT in backend.capabilities
    assert has_remap == (posix.system == "android")
    assert backend.granularity == OS_PAGES[posix.system]
    assert Capability.HUGE_PAGES not in backend.capabilities or has_remap


def test_huge_pages_cannot_be_asked_for(posix: Posix, memory: HostMemory) -> None:
    if posix.system == "android":
        pytest.skip("as on Linux")

    with pytest.raises(MissingCapabilityError, match="leave out huge_pages="):
        memory.choose_pages(PAGE, huge=True)


def test_a_node_cannot_be_asked_for(posix: Posix, memory: HostMemory) -> None:
    with pytest.raises(MissingCapabilityError, match="leave out numa_node="):
        memory.choose_node(0)

    memory.choose_node(None)
    assert Capability.NUMA not in CpuBackend(_memory=memory).capabilities


def test_prefaulted_memory_is_there_when_it_is_committed(
    posix: Posix, memory: HostMemory
) -> None:
    memory.choose_prefault(prefault=True)
    reservation = memory.reserve(8 * PAGE)
    before = resident_nbytes()
    reservation.commit(PAGE, 4 * PAGE)

    assert resident_nbytes() - before > 3 * PAGE
    reservation.release()


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(100, PAGE), (0, 100), (7 * PAGE, PAGE)]
)
def test_a_range_that_the_system_would_round_is_refused_before_any_call(
    posix: Posix, memory: HostMemory, offset: int, nbytes: int
) -> None:
    if posix.system == "android":
        pytest.skip("Linux refuses it itself")
    reservation = memory.reserve(7 * PAGE)
    before = posix.calls

    for change in (reservation.commit, reservation.decommit):
        with pytest.raises(ValueError, match="whole OS pages"):
            change(offset, nbytes)

    assert posix.calls == before
    reservation.release()
