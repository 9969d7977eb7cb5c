"""Huge pages where they fit, and never a neighbour resident through one."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host import linux_calls, proc
from madl.backends.host.linux_reservations import LazyReservation
from madl.errors import MissingCapabilityError
from tests.backends.host import (
    KIB,
    MIB,
    OS_PAGE,
    PAGE,
    fault_count,
    kernel_field,
    linux_memory,
    run_child,
    write,
)

HUGE, DECLINED = 14, 15  # MADV_HUGEPAGE, MADV_NOHUGEPAGE

needs_huge_pages = pytest.mark.skipif(
    proc.huge_page_nbytes() != PAGE or proc.huge_page_mode() == "never",
    reason="this kernel gives no huge pages of 2 MiB",
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each new mapping what the mode "always" gives it: huge pages, unasked."""
    mmap = linux_calls.system.mmap

    def map_huge(address: int, nbytes: int, *rest: int) -> int:
        mapped = mmap(address, nbytes, *rest)
        linux_calls.system.madvise(mapped, nbytes, HUGE)
        return mapped

    monkeypatch.setattr(linux_calls.system, "mmap", map_huge)


@needs_huge_pages
@pytest.mark.parametrize("huge", [True, None])
def test_pages_that_fit_are_backed_by_huge_ones(huge: bool | None) -> None:
    reservation = linux_memory(2 * PAGE, huge=huge).reserve(16 * PAGE)
    faults = fault_count()

    write(reservation.address, 1, 8 * PAGE)
    faults = fault_count() - faults

    assert kernel_field(reservation, "AnonHugePages") == 8 * PAGE
    assert faults < 100  # 4096 without
    reservation.release()


@needs_huge_pages
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("is_lazy_allowed", [True, False])
def test_declined_huge_pages_do_not_come(is_lazy_allowed: bool) -> None:
    memory = linux_memory(PAGE, huge=False, is_lazy_allowed=is_lazy_allowed)
    reservation = memory.reserve(16 * PAGE)
    reservation.commit(0, 8 * PAGE)

    write(reservation.address, 1, 8 * PAGE)

    assert kernel_field(reservation, "AnonHugePages") == 0
    reservation.release()


@needs_huge_pages
@pytest.mark.usefixtures("always")
def test_without_advice_a_neighbour_would_be_resident() -> None:
    memory = linux_memory(64 * KIB)
    memory.advice = HUGE
    reservation = memory.reserve(16 * PAGE)

    write(reservation.address, 1, 1)

    assert kernel_field(reservation, "Rss") == PAGE
    reservation.release()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("is_lazy_allowed", [True, False])
@pytest.mark.parametrize("page_nbytes", [OS_PAGE, 64 * KIB, MIB, 3 * MIB])
def test_no_neighbour_of_a_committed_page_is_resident(
    page_nbytes: int, is_lazy_allowed: bool
) -> None:
    memory = linux_memory(page_nbytes, is_lazy_allowed=is_lazy_allowed)
    reservation = memory.reserve(64 * page_nbytes)

    for page in range(0, 64, 3):
        reservation.commit(page * page_nbytes, page_nbytes)
        write(reservation.address + page * page_nbytes, 1, page_nbytes)
    resident = [kernel_field(reservation, "Rss")]
    for page in range(0, 33, 3):
        reservation.remap(page * page_nbytes, (page + 1) * page_nbytes, page_nbytes)
        write(reservation.address + (page + 1) * page_nbytes, 2, page_nbytes)
    resident.append(kernel_field(reservation, "Rss"))
    for page in range(33, 64, 3):
        reservation.decommit(page * page_nbytes, page_nbytes)
        reservation.commit((page - 1) * page_nbytes, page_nbytes)
        write(reservation.address + (page - 1) * page_nbytes, 3, page_nbytes)
    resident.append(kernel_field(reservation, "Rss"))

    assert resident == [22 * page_nbytes] * 3
    reservation.release()


@pytest.mark.usefixtures("always")
def test_addresses_restored_after_a_failed_mremap_decline_huge_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reservation = linux_memory(64 * KIB).reserve(4 * PAGE)

    def fail(_source: int, _from: int, nbytes: int, _flags: int, target: int) -> int:
        linux_calls.system.unmap(target, nbytes)
        return linux_calls.FAILED

    monkeypatch.setattr(linux_calls.system, "mremap", fail)
    reservation.remap(0, 2 * PAGE, PAGE)
    write(reservation.address + 2 * PAGE, 1, 1)

    assert kernel_field(reservation, "Rss") == OS_PAGE
    reservation.release()


def test_a_choice_is_for_later_reservations() -> None:
    memory = linux_memory(64 * KIB)
    earlier = memory.reserve(16 * PAGE)

    memory.choose_pages(PAGE, huge=None)
    write(earlier.address, 1, 1)
    earlier.decommit(0, PAGE)
    write(earlier.address, 1, 1)

    assert kernel_field(earlier, "Rss") == OS_PAGE
    earlier.release()


@needs_huge_pages
def test_huge_pages_survive_a_remap(lazy: LazyReservation) -> None:
    write(lazy.address, 1, 8 * PAGE)

    for page in range(8):
        lazy.remap(page * PAGE, (60 - 3 * page) * PAGE, PAGE)

    assert kernel_field(lazy, "AnonHugePages") == 8 * PAGE


@pytest.mark.parametrize(
    ("enabled", "page_nbytes", "huge", "advice"),
    [
        ("always [madvise] never", PAGE, None, HUGE),
        ("always [madvise] never", 2 * PAGE, True, HUGE),
        ("always [madvise] never", 64 * KIB, None, DECLINED),
        ("always [madvise] never", PAGE, False, DECLINED),
        ("[always] madvise never", PAGE, None, HUGE),
        ("[always] madvise never", 3 * MIB, None, DECLINED),
        ("[always] madvise never", 64 * KIB, False, DECLINED),
        ("always madvise [never]", PAGE, None, HUGE),
        ("always madvise [never]", PAGE, False, DECLINED),
    ],
)
def test_huge_pages_are_asked_for_only_where_they_fit(
    thp: Callable[[str], None],
    enabled: str,
    page_nbytes: int,
    huge: bool | None,
    advice: int,
) -> None:
    thp(enabled)

    assert linux_memory(page_nbytes, huge=huge).advice == advice


def test_a_kernel_without_huge_pages_is_asked_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "_THP", tmp_path)
    monkeypatch.setattr(proc, "explicit_page_nbytes", lambda: 0)
    memory = linux_memory(PAGE)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.choose_pages(PAGE, huge=True)

    assert (memory.huge_page_nbytes, memory.advice) == (0, DECLINED)
    assert str(caught.value) == (
        "cpu has no huge pages in this kernel. Try: leave out huge_pages="
    )


def test_pages_that_no_huge_page_fits_into(thp: Callable[[str], None]) -> None:
    thp("always [madvise] never")
    memory = linux_memory(PAGE)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.choose_pages(64 * KIB, huge=True)

    assert memory.advice == HUGE
    assert str(caught.value) == (
        "cpu has no huge pages for pages of 64.0 KiB, no multiple of 2.0 MiB. "
        "Try: page_size='2.0 MiB', or leave out huge_pages="
    )


def test_huge_pages_that_the_kernel_never_gives(thp: Callable[[str], None]) -> None:
    thp("always madvise [never]")
    memory = linux_memory(64 * KIB)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.choose_pages(PAGE, huge=True)

    assert memory.advice == DECLINED
    assert str(caught.value) == (
        "cpu has no huge pages of 2.0 MiB while transparent_hugepage is 'never'. "
        "Try: ask for 'madvise' in that setting, or leave out huge_pages="
    )


@pytest.mark.parametrize(
    ("own", "mode"),
    [
        ("always [inherit] madvise never", "madvise"),
        ("always inherit madvise [never]", "never"),
        ("[always] inherit madvise never", "always"),
    ],
)
def test_the_size_of_a_huge_page_may_have_a_mode_of_its_own(
    tmp_path: Path, thp: Callable[[str], None], own: str, mode: str
) -> None:
    thp("always [madvise] never")
    (tmp_path / "hugepages-2048kB").mkdir()
    (tmp_path / "hugepages-2048kB" / "enabled").write_text(f"{own}\n")

    assert proc.huge_page_mode() == mode


def test_a_process_that_has_switched_them_off_has_none() -> None:
    out = run_child(
        "ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"  # PR_SET_THP_DISABLE
        "from madl.backends.host import proc\n"
        "print(proc.huge_page_mode())\n"
    )

    assert out == "never"


def test_reservations_start_at_a_huge_page_larger_than_the_alignment(
    tmp_path: Path, thp: Callable[[str], None]
) -> None:
    thp("always [madvise] never")
    (tmp_path / "hpage_pmd_size").write_text(f"{32 * MIB}\n")  # arm64, 16 KiB OS pages
    memory = linux_memory(32 * MIB)

    reservations = [memory.reserve(32 * MIB) for _ in range(4)]

    assert [each.address % (32 * MIB) for each in reservations] == [0] * 4
    for each in reservations:
        each.release()


def test_no_advice_is_given_where_the_kernel_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: int) -> int:
        ctypes.set_errno(22)
        return -1

    monkeypatch.setattr(linux_calls.system, "madvise", refuse)

    reservation = linux_memory().reserve(PAGE)

    reservation.release()
