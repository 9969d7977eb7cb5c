"""Huge pages that an administrator has set aside: MAP_HUGETLB."""

import ctypes
import errno
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

import fcntl

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host import linux_calls, proc
from madl.backends.host.linux import LinuxMemory
from madl.backends.host.linux_reservations import ExplicitReservation
from madl.errors import MissingCapabilityError, OutOfMemoryError
from tests.backends.host import KIB, OS_PAGE, PAGE, kernel_field, read, write
from tests.backends.walk import Walk, steps

STOCK = Path("/proc/sys/vm/nr_hugepages")
WANTED = 48

pytestmark = pytest.mark.skipif(
    proc.explicit_page_nbytes() != PAGE, reason="no huge pages of 2 MiB to set aside"
)


def free_count() -> int:
    return int(proc.explicit_stock().partition(" ")[0])


@pytest.fixture
def stock() -> Iterator[int]:
    """Set some aside; return how many there are. The setting is the whole system's."""
    with STOCK.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # other runs of these tests wait
        before = STOCK.read_text()
        try:
            STOCK.write_text(f"{int(before) + WANTED}\n")
        except OSError:
            pytest.skip("only an administrator sets huge pages aside")
        try:
            if free_count() < WANTED:
                pytest.skip("there is no memory to set huge pages aside from")
            yield free_count()
        finally:
            with suppress(OSError):
                STOCK.write_text(before)


@pytest.fixture
def memory(stock: int) -> LinuxMemory:
    memory = LinuxMemory()
    memory.choose_pages(PAGE, huge="explicit")
    return memory


@pytest.fixture
def explicit(memory: LinuxMemory) -> Iterator[ExplicitReservation]:
    reservation = memory.reserve(64 * PAGE)
    assert isinstance(reservation, ExplicitReservation)
    yield reservation
    reservation.release()


def test_what_is_committed_is_of_huge_pages(
    explicit: ExplicitReservation, stock: int
) -> None:
    assert free_count() == stock

    explicit.commit(4 * PAGE, 3 * PAGE)
    write(explicit.address + 4 * PAGE, 7, 3 * PAGE)

    assert kernel_field(explicit, "Private_Hugetlb") == 3 * PAGE
    assert free_count() == stock - 3


def test_what_is_decommitted_is_in_stock_again(
    explicit: ExplicitReservation, stock: int
) -> None:
    explicit.commit(0, 4 * PAGE)
    write(explicit.address, 7, 4 * PAGE)

    explicit.decommit(PAGE, 2 * PAGE)

    assert free_count() == stock - 2
    assert read(explicit.address + 3 * PAGE) == b"\7"
    explicit.commit(PAGE, 2 * PAGE)
    assert read(explicit.address + PAGE) == b"\0"


def test_more_than_is_in_stock_is_out_of_memory_and_changes_nothing(
    explicit: ExplicitReservation, stock: int
) -> None:
    explicit.commit(0, PAGE)

    with pytest.raises(OutOfMemoryError) as caught:
        explicit.commit(PAGE, stock * PAGE)

    assert str(caught.value.report.native) == (
        "mmap failed with 12 (Cannot allocate memory)"
    )
    assert free_count() >= stock - 1
    explicit.commit(PAGE, PAGE)
    write(explicit.address, 1, 2 * PAGE)


def test_a_hole_that_a_refused_commit_leaves_is_closed(
    explicit: ExplicitReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmap_and_fail(address: int, nbytes: int) -> bool:
        linux_calls.system.unmap(address, nbytes)  # as kernels before 6.12 do
        linux_calls.system.mmap(0, 0, 0, 0, -1, 0)  # for its errno
        return False

    with monkeypatch.context() as patch:
        patch.setattr(linux_calls, "map_explicit", unmap_and_fail)
        with pytest.raises(Exception, match="mmap failed"):
            explicit.commit(PAGE, PAGE)

    assert linux_calls.system.madvise(explicit.address, explicit.nbytes, 0) == 0


def test_memory_is_exchanged(explicit: ExplicitReservation, stock: int) -> None:
    explicit.commit(0, 2 * PAGE)

    explicit.remap(0, 8 * PAGE, 2 * PAGE)

    write(explicit.address + 8 * PAGE, 1, 2 * PAGE)
    assert kernel_field(explicit, "Private_Hugetlb") == 2 * PAGE
    assert free_count() == stock - 2


def test_prefaulted_huge_pages_are_there(stock: int) -> None:
    memory = LinuxMemory()
    memory.choose_prefault(prefault=True)
    memory.choose_pages(PAGE, huge="explicit")
    reservation = memory.reserve(8 * PAGE)

    reservation.commit(PAGE, 2 * PAGE)

    assert kernel_field(reservation, "Private_Hugetlb") == 2 * PAGE
    reservation.release()


def test_what_huge_pages_do_not_fit_has_small_ones(memory: LinuxMemory) -> None:
    reservation = memory.reserve(3 * OS_PAGE)

    assert not isinstance(reservation, ExplicitReservation)
    reservation.release()


def test_it_says_so(memory: LinuxMemory) -> None:
    memory.reserve(PAGE).release()

    facts = memory.describe()

    assert facts["huge pages"] == "explicit, 2.0 MiB"
    assert facts["commit"] == "strict, by mmap (explicit huge pages)"


def test_a_pool_keeps_every_byte_and_gives_all_back(stock: int) -> None:
    limit = (WANTED - 2) * PAGE
    pool = Pool(CpuBackend(), huge_pages="explicit", limit=limit, page_size="2 MiB")
    walk = Walk(pool, 11)

    for step in steps(walk, 300):
        if step % 50 == 0:
            pool.check()
    walk.finish()

    assert pool.close().live_count == 0
    assert free_count() == stock


def test_a_pool_survives_an_empty_stock(stock: int) -> None:
    pool = Pool(CpuBackend(), huge_pages="explicit")
    kept = pool.allocate(2 * PAGE)
    write(kept.address, 5, 2 * PAGE)

    with pytest.raises(OutOfMemoryError):
        pool.allocate((stock + 8) * PAGE)

    pool.check()
    assert read(kept.address + 2 * PAGE - 1) == b"\5"
    pool.allocate(2 * PAGE).free()
    kept.free()
    pool.close()
    assert free_count() == stock


def test_without_a_stock_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: int) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return linux_calls.FAILED

    backend = CpuBackend()
    monkeypatch.setattr(proc, "explicit_stock", lambda: "0 of 0 free")
    monkeypatch.setattr(linux_calls.system, "mmap", refuse)

    with pytest.raises(MissingCapabilityError) as caught:
        Pool(backend, huge_pages="explicit")

    assert str(caught.value) == (
        "cpu has no explicit huge pages of 2.0 MiB (mmap failed with 12 (Cannot "
        "allocate memory); 0 of 0 free). Try: set more aside with "
        "'sysctl vm.nr_hugepages=N', or leave out huge_pages="
    )


def test_pages_that_they_do_not_fit_are_refused() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(CpuBackend(), page_size="64 KiB", huge_pages="explicit")

    assert str(caught.value) == (
        "cpu has no explicit huge pages for pages of 64.0 KiB, no multiple of 2.0 MiB. "
        "Try: page_size='2.0 MiB', or leave out huge_pages="
    )


def test_a_kernel_without_them_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = LinuxMemory()
    monkeypatch.setattr(proc, "_PROC", tmp_path)

    with pytest.raises(MissingCapabilityError, match="explicit huge pages in this ker"):
        memory.choose_pages(PAGE, huge="explicit")


def test_a_choice_that_was_refused_leaves_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = LinuxMemory()
    memory.choose_pages(PAGE, huge=False)

    with pytest.raises(MissingCapabilityError):
        memory.choose_pages(64 * KIB, huge="explicit")

    assert memory.describe()["huge pages"] == "declined"
