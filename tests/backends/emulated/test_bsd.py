"""The BSDs, emulated: strict commits, and numbers of their own."""

import ctypes
import errno

import pytest

from madl.backends.host.bsd import BsdMemory
from madl.errors import BackendCallError
from tests.backends.emulated.posix import Posix, open_memory

PAGE = 2 << 20


def test_a_reservation_cannot_be_used_before_it_is_committed(bsd: Posix) -> None:
    reservation = open_memory(bsd).reserve(8 * PAGE)

    assert (bsd.usable_nbytes, bsd.mapped_nbytes) == (0, 8 * PAGE)
    reservation.commit(PAGE, PAGE)
    assert bsd.usable_nbytes == PAGE
    reservation.release()


def test_decommit_leaves_no_memory_behind(bsd: Posix) -> None:
    reservation = open_memory(bsd).reserve(4 * PAGE)
    reservation.commit(0, 4 * PAGE)
    ctypes.memset(reservation.address, 7, 4 * PAGE)

    reservation.decommit(PAGE, 2 * PAGE)
    assert bsd.usable_nbytes == 2 * PAGE
    reservation.commit(PAGE, 2 * PAGE)

    assert ctypes.string_at(reservation.address + PAGE, 1) == b"\0"
    assert ctypes.string_at(reservation.address + 3 * PAGE, 1) == b"\7"
    reservation.release()


def test_a_decommit_that_fails_is_an_error_and_changes_nothing(bsd: Posix) -> None:
    reservation = open_memory(bsd).reserve(PAGE)
    reservation.commit(0, PAGE)
    bsd.fail(1)

    with pytest.raises(BackendCallError) as caught:
        reservation.decommit(0, PAGE)

    assert caught.value.native.code == errno.ENOMEM
    assert bsd.usable_nbytes == PAGE
    reservation.release()


@pytest.mark.parametrize("number", [4, 5, 8])
def test_numbers_for_freeing_of_other_systems_are_refused_here(
    bsd: Posix, number: int
) -> None:
    memory = BsdMemory(_library=bsd.library, _system=bsd.system)
    reservation = memory.reserve(PAGE)
    reservation.commit(0, PAGE)
    madv_free = {"freebsd": 5, "netbsd": 6, "openbsd": 6}[bsd.system]

    done = memory.calls.madvise(reservation.address, PAGE, number)

    assert (done == 0) == (number == madv_free)
    bsd.forgive()
    reservation.release()


def test_the_machines_memory_is_read(bsd: Posix) -> None:
    info = open_memory(bsd).memory_info()

    assert 0 < info.available_nbytes <= info.total_nbytes


def test_free_and_inactive_pages_are_available_on_freebsd(
    emulated_freebsd: Posix,
) -> None:
    assert open_memory(emulated_freebsd).memory_info().available_nbytes == 128 << 20


def test_it_says_how_it_commits(bsd: Posix) -> None:
    facts = open_memory(bsd).describe()

    assert facts["commit"] == "strict, by mprotect"
    assert facts["huge pages"] == "as the system chooses"
