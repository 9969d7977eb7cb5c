"""What is committed is there before it is touched, where that was asked for."""

import ctypes
import errno
import mmap
import sys
from collections.abc import Callable

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host import linux_calls
from madl.backends.host.linux import LinuxMemory
from madl.errors import BackendCallError, MissingCapabilityError, OutOfMemoryError
from tests.backends.host import PAGE, kernel_field, resident_nbytes, write

POPULATE_WRITE = 23


def prefaulting(*, is_lazy_allowed: bool = True) -> LinuxMemory:
    memory = LinuxMemory(is_lazy_allowed=is_lazy_allowed)
    memory.choose_prefault(prefault=True)
    memory.choose_pages(PAGE, huge=None)
    return memory


def refuse(monkeypatch: pytest.MonkeyPatch, code: int, *, after: int = 0) -> None:
    """Let the kernel refuse to fault memory in, but for the first calls."""
    advise, done = linux_calls.system.madvise, 0

    def maybe(address: int, nbytes: int, advice: int) -> int:
        nonlocal done
        done += advice == POPULATE_WRITE
        if advice != POPULATE_WRITE or done <= after:
            return advise(address, nbytes, advice)
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(linux_calls.system, "madvise", maybe)


@pytest.mark.parametrize("is_lazy_allowed", [True, False])
def test_what_is_committed_is_resident(is_lazy_allowed: bool) -> None:
    reservation = prefaulting(is_lazy_allowed=is_lazy_allowed).reserve(16 * PAGE)

    for _ in range(2):
        reservation.commit(2 * PAGE, 3 * PAGE)
        resident = kernel_field(reservation, "Rss")
        reservation.decommit(2 * PAGE, 3 * PAGE)

        assert resident == 3 * PAGE

    reservation.release()


@pytest.mark.parametrize("is_lazy_allowed", [True, False])
def test_a_kernel_without_the_call_has_its_memory_written(
    is_lazy_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.EINVAL)
    memory = prefaulting(is_lazy_allowed=is_lazy_allowed)
    reservation = memory.reserve(16 * PAGE)

    reservation.commit(2 * PAGE, 3 * PAGE)

    assert memory.describe()["prefault"] == "by writing"
    assert kernel_field(reservation, "Rss") == 3 * PAGE
    reservation.release()


@pytest.mark.parametrize("is_lazy_allowed", [True, False])
@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOMEM, OutOfMemoryError), (errno.EFAULT, BackendCallError)],
)
def test_what_cannot_be_faulted_in_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[Exception],
    is_lazy_allowed: bool,
) -> None:
    reservation = prefaulting(is_lazy_allowed=is_lazy_allowed).reserve(16 * PAGE)

    with monkeypatch.context() as patch:
        refuse(patch, code)
        with pytest.raises(kind, match="madvise failed with"):
            reservation.commit(0, 2 * PAGE)

    assert kernel_field(reservation, "Rss") == 0
    reservation.commit(0, 2 * PAGE)
    write(reservation.address, 1, 2 * PAGE)
    reservation.release()


def test_a_block_of_a_pool_is_there_before_it_is_touched() -> None:
    pool = Pool(CpuBackend(), prefault=True)
    before = resident_nbytes()

    live = pool.allocate(32 * PAGE)

    assert resident_nbytes() - before > 31 * PAGE
    live.free()
    pool.close()


def test_a_block_is_not_there_unasked() -> None:
    pool = Pool(CpuBackend())
    before = resident_nbytes()

    live = pool.allocate(32 * PAGE)

    assert resident_nbytes() - before < PAGE
    live.free()
    pool.close()


def test_a_pool_survives_memory_that_cannot_be_faulted_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(CpuBackend(), prefault=True)
    kept = pool.allocate(PAGE)
    before = pool.stats()

    with monkeypatch.context() as patch:
        refuse(patch, errno.ENOMEM)
        with pytest.raises(OutOfMemoryError):
            pool.allocate(8 * PAGE)

    pool.check()
    assert pool.stats().live_nbytes == before.live_nbytes
    pool.allocate(8 * PAGE).free()
    kept.free()
    pool.close()


def test_huge_pages_that_are_never_given_are_made(
    thp: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    thp("always madvise [never]")
    # The kernel's own mode may be another, so its advice must not be what brings them.
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 0)
    memory = LinuxMemory()
    memory.choose_prefault(prefault=True)
    try:
        memory.choose_pages(PAGE, huge=True)
    except MissingCapabilityError:
        pytest.skip("this kernel makes no huge pages on request")
    reservation = memory.reserve(16 * PAGE)

    reservation.commit(2 * PAGE, 3 * PAGE)

    assert memory.describe()["prefault"] == "MADV_COLLAPSE"
    assert kernel_field(reservation, "AnonHugePages") == 3 * PAGE
    reservation.release()


def test_huge_pages_are_not_made_against_the_mode_unasked(
    thp: Callable[[str], None],
) -> None:
    thp("always madvise [never]")

    assert prefaulting().describe()["prefault"] != "MADV_COLLAPSE"


def test_another_choice_of_pages_makes_no_huge_ones_any_more(
    thp: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    thp("always madvise [never]")
    monkeypatch.setattr(linux_calls, "make_huge", lambda *_: True)
    memory = LinuxMemory()
    memory.choose_prefault(prefault=True)
    memory.choose_pages(PAGE, huge=True)

    memory.choose_pages(PAGE, huge=None)

    assert memory.describe()["prefault"] != "MADV_COLLAPSE"


def test_huge_pages_that_cannot_be_made_are_small_ones(
    thp: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    thp("always madvise [never]")
    monkeypatch.setattr(linux_calls, "make_huge", lambda *_: True)
    memory = LinuxMemory()
    memory.choose_prefault(prefault=True)
    memory.choose_pages(PAGE, huge=True)
    reservation = memory.reserve(16 * PAGE)
    monkeypatch.setattr(linux_calls, "make_huge", lambda *_: False)

    reservation.commit(2 * PAGE, 3 * PAGE)

    assert kernel_field(reservation, "Rss") == 3 * PAGE
    reservation.release()
