"""Memory moves inside a reservation, and what happens where it cannot."""

import ctypes
import errno
import random
import sys
from itertools import pairwise

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host import linux_calls
from madl.backends.host.linux_reservations import LazyReservation, StrictReservation
from madl.errors import BackendCallError
from tests.backends.host import (
    KIB,
    OS_PAGE,
    PAGE,
    fault_count,
    kernel_field,
    linux_memory,
    read,
    vma_count,
    write,
)


def test_remap_leaves_destination_committed_and_source_not(
    reservation: LazyReservation | StrictReservation,
) -> None:
    reservation.commit(0, 2 * PAGE)
    write(reservation.address, 7, 2 * PAGE)

    reservation.remap(0, 30 * PAGE, 2 * PAGE)

    write(reservation.address + 30 * PAGE, 8, 2 * PAGE)
    assert kernel_field(reservation, "Rss") == 2 * PAGE
    reservation.commit(0, 2 * PAGE)
    assert read(reservation.address, 2 * PAGE) == bytes(2 * PAGE)


def test_remap_moves_content_without_a_fault(lazy: LazyReservation) -> None:
    for page in range(24):
        write(lazy.address + page * PAGE, page + 1)
    faults = fault_count()

    lazy.remap(0, 32 * PAGE, 24 * PAGE)
    content = [read(lazy.address + (32 + page) * PAGE)[0] for page in range(24)]

    assert content == list(range(1, 25))
    assert fault_count() - faults < 12  # the interpreter's own; 24 more otherwise


def test_remap_without_huge_pages_moves_without_a_fault() -> None:
    reservation = linux_memory(64 * KIB).reserve(64 * PAGE)
    moved_nbytes = 256 * OS_PAGE
    write(reservation.address, 3, moved_nbytes)
    faults = fault_count()

    reservation.remap(0, 9 * PAGE + 64 * KIB, moved_nbytes)
    moved = reservation.address + 9 * PAGE + 64 * KIB
    content = {read(moved + offset) for offset in range(0, moved_nbytes, OS_PAGE)}

    assert content == {b"\x03"}
    assert fault_count() - faults < 64  # the interpreter's own; 256 more otherwise
    reservation.release()


def test_remap_of_a_source_of_several_vmas(lazy: LazyReservation) -> None:
    for page in range(4):
        write(lazy.address + page * PAGE, page + 1)
    for page in range(4):
        lazy.remap(page * PAGE, (23 - page) * PAGE, PAGE)

    lazy.remap(20 * PAGE, 50 * PAGE, 4 * PAGE)

    content = [read(lazy.address + (50 + page) * PAGE)[0] for page in range(4)]
    assert content == [4, 3, 2, 1]


def test_before_linux_6_17_each_mremap_is_of_one_vma(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy._memory, "moves_many", False)
    for page in range(4):
        write(lazy.address + page * PAGE, page + 1)
    lazy.remap(PAGE, 9 * PAGE, PAGE)
    lazy.remap(0, 8 * PAGE, PAGE)
    lengths = []
    mremap = linux_calls.system.mremap

    def record(address: int, nbytes: int, *rest: int) -> int:
        lengths.append(nbytes // PAGE)
        return mremap(address, nbytes, *rest)

    monkeypatch.setattr(linux_calls.system, "mremap", record)
    lazy.remap(7 * PAGE, 40 * PAGE, 5 * PAGE)

    assert lengths == [1, 1, 1, 2]


def test_a_kernel_that_moves_one_vma_at_a_time_is_asked_once(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in range(4):
        write(lazy.address + page * PAGE, page + 1)
    lazy.remap(PAGE, 9 * PAGE, PAGE)
    lazy.remap(0, 8 * PAGE, PAGE)
    lengths = []
    mremap = linux_calls.system.mremap

    def refuse_many(address: int, nbytes: int, *rest: int) -> int:
        lengths.append(nbytes // PAGE)
        if nbytes > PAGE:
            linux_calls.system.unmap(
                rest[-1], nbytes
            )  # as the kernel does before it looks
            return linux_calls.FAILED
        return mremap(address, nbytes, *rest)

    monkeypatch.setattr(linux_calls.system, "mremap", refuse_many)
    lazy.remap(8 * PAGE, 40 * PAGE, 2 * PAGE)
    lazy.remap(40 * PAGE, 20 * PAGE, 2 * PAGE)

    assert lengths == [2, 1, 1, 1, 1]
    assert [read(lazy.address + page * PAGE)[0] for page in (20, 21)] == [1, 2]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("many", [1, 3])
def test_scattered_remaps_keep_content_and_count_vmas(seed: int, many: int) -> None:
    memory = linux_memory(64 * KIB)
    reservation = memory.reserve(512 * 64 * KIB)
    assert isinstance(reservation, LazyReservation)
    walk = random.Random(seed)
    content = {page: page % 250 + 1 for page in range(200)}
    for page, value in content.items():
        write(reservation.address + page * 64 * KIB, value, 64 * KIB)

    for _ in range(2000):
        length = walk.randint(1, many)
        source, destination = walk.randrange(510), walk.randrange(510)
        taken = set(range(destination, destination + length))
        moved = range(source, source + length)
        if taken & {*content, *moved} or not content.keys() >= set(moved):
            continue
        reservation.remap(source * 64 * KIB, destination * 64 * KIB, length * 64 * KIB)
        for page in moved:
            content[page - source + destination] = content.pop(page)

    found = {page: read(reservation.address + page * 64 * KIB)[0] for page in content}
    assert found == content
    assert vma_count(reservation) <= memory.cut_count + 1 <= 514
    cuts = reservation._cuts
    assert all(first < second for first, second in pairwise(cuts))
    reservation.release()
    assert memory.cut_count == 0


@pytest.mark.parametrize("is_unmapped", [False, True])
def test_a_failed_mremap_is_repaired(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch, is_unmapped: bool
) -> None:
    write(lazy.address, 1)

    def fail(_source: int, _from: int, nbytes: int, _flags: int, target: int) -> int:
        if is_unmapped:
            linux_calls.system.unmap(target, nbytes)
        ctypes.set_errno(errno.ENOMEM)
        return linux_calls.FAILED

    monkeypatch.setattr(linux_calls.system, "mremap", fail)
    lazy.remap(0, 33 * PAGE, PAGE)

    write(lazy.address + 33 * PAGE, 4)
    assert read(lazy.address) == b"\x00"
    assert kernel_field(lazy, "Rss") <= 2 * PAGE


def test_a_repair_spares_what_another_thread_mapped(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = lazy.address + 33 * PAGE + 5 * OS_PAGE
    flags = linux_calls.LAZY | 0x10  # MAP_FIXED

    def fail(_source: int, _from: int, nbytes: int, _flags: int, target: int) -> int:
        linux_calls.system.unmap(target, nbytes)
        linux_calls.system.mmap(taken, OS_PAGE, linux_calls.READ_WRITE, flags, -1, 0)
        write(taken, 7, OS_PAGE)
        return linux_calls.FAILED

    monkeypatch.setattr(linux_calls.system, "mremap", fail)
    with pytest.raises(BackendCallError) as caught:
        lazy.remap(0, 33 * PAGE, PAGE)

    assert read(taken, OS_PAGE) == b"\x07" * OS_PAGE
    assert str(caught.value) == (
        "cpu: cannot restore 2.0 MiB: mmap failed with 17 (File exists)"
    )


def test_a_kernel_without_dontunmap_has_no_remap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: int) -> int:
        ctypes.set_errno(errno.EINVAL)
        return linux_calls.FAILED

    monkeypatch.setattr(linux_calls.system, "mremap", refuse)

    assert linux_memory().remap_refusal == "mremap: Invalid argument"
