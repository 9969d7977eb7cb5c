"""The two ways to commit: by the first touch, and by asking."""

import ctypes
import errno
import os
import re
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host import linux_calls, proc
from madl.backends.host.linux_reservations import LazyReservation, StrictReservation
from madl.errors import BackendCallError, OutOfMemoryError
from tests.backends.host import (
    GIB,
    KIB,
    PAGE,
    ROOM,
    kernel_field,
    linux_memory,
    read,
    run_child,
    write,
)


def test_committed_parts_can_be_written(
    reservation: LazyReservation | StrictReservation,
) -> None:
    for offset in (0, 7 * PAGE, 63 * PAGE):
        reservation.commit(offset, PAGE)
        write(reservation.address + offset, 9)

    assert read(reservation.address + 64 * PAGE - 1) == b"\x09"


def test_decommit_gives_the_memory_of_a_part_back(
    reservation: LazyReservation | StrictReservation,
) -> None:
    reservation.commit(0, 16 * PAGE)
    write(reservation.address, 1, 16 * PAGE)

    reservation.decommit(4 * PAGE, 8 * PAGE)

    assert kernel_field(reservation, "Rss") == 8 * PAGE
    assert read(reservation.address + 4 * PAGE - 1) == b"\x01"
    assert read(reservation.address + 12 * PAGE) == b"\x01"


def test_a_part_can_be_committed_again(
    reservation: LazyReservation | StrictReservation,
) -> None:
    for value in range(1, 50):
        reservation.commit(3 * PAGE, 2 * PAGE)
        write(reservation.address + 3 * PAGE, value, 2 * PAGE)
        assert read(reservation.address + 5 * PAGE - 1)[0] == value
        reservation.decommit(3 * PAGE, 2 * PAGE)


def test_overcommit_mode_2_is_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overcommit_memory").write_text("2\n")
    monkeypatch.setattr(proc, "_VM", tmp_path)
    memory = linux_memory()

    reservation = memory.reserve(GIB)

    assert isinstance(reservation, StrictReservation)
    assert memory.describe()["commit"] == "strict, by mprotect (overcommit mode 2)"
    reservation.release()


def test_strict_memory_cannot_be_touched_before_it_is_committed() -> None:
    out = run_child(
        "import os\n"
        "reservation = linux_memory(is_lazy_allowed=False).reserve(4 * PAGE)\n"
        "reservation.commit(PAGE, PAGE)\n"
        "ctypes.memset(reservation.address + PAGE, 1, PAGE)\n"
        "reservation.decommit(PAGE, PAGE)\n"
        "for offset in (0, PAGE):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        ctypes.memset(reservation.address + offset, 1, 1)\n"
        "        os._exit(0)\n"
        "    print(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )

    assert out.split() == ["11", "11"]


def test_strict_decommit_gives_back_what_is_counted() -> None:
    def counted_nbytes() -> int:
        found = re.search(r"Committed_AS: +(\d+)", Path("/proc/meminfo").read_text())
        assert found is not None
        return int(found[1]) * KIB

    nbytes = min(4 * GIB, ROOM)
    reservation = linux_memory(is_lazy_allowed=False).reserve(nbytes)
    before = counted_nbytes()

    reservation.commit(0, nbytes)
    write(reservation.address, 1, PAGE)
    between = counted_nbytes()
    reservation.decommit(0, nbytes)

    # Other processes commit too, but hardly so much in this millisecond.
    assert between - before > nbytes // 2
    assert abs(counted_nbytes() - before) < nbytes // 2
    reservation.release()


def test_a_commit_that_fails_halfway_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reservation = linux_memory(is_lazy_allowed=False).reserve(8 * PAGE)
    mprotect = linux_calls.system.mprotect

    def change_one_vma(address: int, nbytes: int, protection: int) -> int:
        mprotect(address, nbytes // 2, protection)
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(linux_calls.system, "mprotect", change_one_vma)
    with pytest.raises(OutOfMemoryError):
        reservation.commit(2 * PAGE, 2 * PAGE)

    maps = Path("/proc/self/maps").read_text()
    assert f"{reservation.address + 2 * PAGE:x}-" not in maps
    reservation.release()


def access(address: int, nbytes: int) -> set[str]:
    """Return how the kernel lets a range be used."""
    found = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) (\S+)",
        Path("/proc/self/maps").read_text(),
        re.MULTILINE,
    )
    return {
        how
        for first, last, how in found
        if int(first, 16) < address + nbytes and int(last, 16) > address
    }


def test_pages_of_an_interrupted_decommit_are_usable_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reservation = linux_memory(is_lazy_allowed=False).reserve(8 * PAGE)
    reservation.commit(0, 4 * PAGE)
    mmap = linux_calls.system.mmap

    def map_and_interrupt(*arguments: int) -> int:
        mmap(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(linux_calls.system, "mmap", map_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            reservation.decommit(PAGE, 2 * PAGE)

    assert access(reservation.address, 4 * PAGE) == {"rw-p"}
    reservation.release()


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL])
def test_a_strict_remap_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    reservation = linux_memory(is_lazy_allowed=False).reserve(8 * PAGE)
    reservation.commit(0, PAGE)
    mprotect = linux_calls.system.mprotect

    def refuse(address: int, nbytes: int, protection: int) -> int:
        if address == reservation.address:
            return mprotect(address, nbytes, protection)
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(linux_calls.system, "mprotect", refuse)
    with pytest.raises((OutOfMemoryError, BackendCallError)):
        reservation.remap(0, 4 * PAGE, PAGE)

    assert access(reservation.address, PAGE) == {"rw-p"}
    reservation.release()


def test_a_forked_child_has_its_own_copy(lazy: LazyReservation) -> None:
    write(lazy.address, 1)
    lazy.remap(0, 9 * PAGE, PAGE)

    child = os.fork()
    if child == 0:
        write(lazy.address + 9 * PAGE, 2)
        lazy.remap(9 * PAGE, 3 * PAGE, PAGE)
        os._exit(read(lazy.address + 3 * PAGE)[0])

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert read(lazy.address + 9 * PAGE) == b"\x01"
