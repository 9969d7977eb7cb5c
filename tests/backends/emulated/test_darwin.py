"""macOS, emulated: memory goes back by advice, and is announced again."""

import ctypes
import errno
import os

import pytest

from madl.backends.host import darwin
from madl.backends.host.darwin import DarwinMemory
from madl.errors import BackendCallError, OutOfMemoryError
from tests.backends.emulated.posix import Posix

PAGE = 2 << 20


@pytest.fixture
def memory(macos: Posix) -> DarwinMemory:
    return DarwinMemory(_library=macos.library)


def test_decommit_takes_the_memory_off_the_count_and_keeps_the_addresses(
    macos: Posix, memory: DarwinMemory
) -> None:
    reservation = memory.reserve(8 * PAGE)

    reservation.decommit(PAGE, 2 * PAGE)

    assert (macos.usable_nbytes, macos.mapped_nbytes) == (6 * PAGE, 8 * PAGE)
    reservation.release()


def test_commit_puts_it_on_the_count_again(macos: Posix, memory: DarwinMemory) -> None:
    reservation = memory.reserve(8 * PAGE)
    reservation.decommit(PAGE, 2 * PAGE)

    reservation.commit(PAGE, PAGE)

    assert macos.usable_nbytes == 7 * PAGE
    reservation.release()


def test_a_first_commit_makes_no_call(macos: Posix, memory: DarwinMemory) -> None:
    reservation = memory.reserve(8 * PAGE)
    before = macos.calls

    reservation.commit(0, 8 * PAGE)

    assert macos.calls == before
    reservation.release()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EPERM])
def test_memory_that_the_kernel_will_not_reuse_is_mapped_anew(
    macos: Posix, memory: DarwinMemory, code: int
) -> None:
    reservation = memory.reserve(PAGE)
    ctypes.memset(reservation.address, 7, 1)
    macos.fail(1, code)

    reservation.decommit(0, PAGE)

    assert ctypes.string_at(reservation.address, 1) == b"\0"
    reservation.release()


def test_a_reuse_that_fails_is_mapped_anew(macos: Posix, memory: DarwinMemory) -> None:
    reservation = memory.reserve(PAGE)
    reservation.decommit(0, PAGE)
    macos.fail(1, errno.EINVAL)

    reservation.commit(0, PAGE)

    assert macos.usable_nbytes == PAGE
    reservation.release()


def test_a_commit_that_cannot_be_had_either_way_is_out_of_memory(
    macos: Posix, memory: DarwinMemory
) -> None:
    reservation = memory.reserve(PAGE)
    reservation.decommit(0, PAGE)
    macos.fail(1, count=2)

    with pytest.raises(OutOfMemoryError, match="mmap failed with 12"):
        reservation.commit(0, PAGE)

    assert macos.usable_nbytes == 0
    reservation.release()


def test_without_the_advice_it_says_how_memory_goes_back(macos: Posix) -> None:
    macos.fail(4, errno.EINVAL)  # mmap, two munmaps, then the probe's madvise

    memory = DarwinMemory(_library=macos.library)

    assert memory.describe()["decommit"] == "by a new mapping"
    reservation = memory.reserve(PAGE)
    reservation.decommit(0, PAGE)
    assert macos.usable_nbytes == PAGE
    reservation.release()


def test_it_says_that_large_pages_are_none(memory: DarwinMemory) -> None:
    assert memory.describe()["huge pages"].startswith("none")
    assert memory.describe()["decommit"] == "by MADV_FREE_REUSABLE"


def test_memory_info_counts_free_and_inactive_pages(memory: DarwinMemory) -> None:
    info = memory.memory_info()

    assert info == (256 << 20, 128 << 20)


def test_the_statistics_are_as_large_as_the_kernel_expects() -> None:
    assert ctypes.sizeof(darwin._VmStatistics) == 38 * 4


def test_a_machine_that_does_not_answer_is_an_error(
    memory: DarwinMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_statistics", lambda *_: 5)

    with pytest.raises(BackendCallError, match="host_statistics64 failed with 5"):
        memory.memory_info()


def test_linuxs_number_for_freeing_would_free_nothing(
    macos: Posix, memory: DarwinMemory
) -> None:
    reservation = memory.reserve(PAGE)

    linux_madv_free = 8
    assert memory.calls.madvise(reservation.address, PAGE, linux_madv_free) == 0

    assert macos.usable_nbytes == PAGE
    reservation.release()


def test_a_child_of_fork_sees_its_own_copy(memory: DarwinMemory) -> None:
    reservation = memory.reserve(PAGE)
    ctypes.memset(reservation.address, 1, 1)

    child = os.fork()
    if child == 0:
        ctypes.memset(reservation.address, 2, 1)
        os._exit(0)
    os.waitpid(child, 0)

    assert ctypes.string_at(reservation.address, 1) == b"\1"
    reservation.release()
