"""What ``mlock`` and ``mlockall`` do to reservations."""

import ctypes
import errno
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host import linux_calls, posix_calls
from madl.backends.host.linux_reservations import LazyReservation
from madl.errors import BackendCallError
from tests.backends.host import OS_PAGE, PAGE, kernel_field, read, run_child, write

MCL_FUTURE, MCL_ONFAULT = 2, 4


@pytest.fixture
def locked(lazy: LazyReservation) -> LazyReservation:
    """Return a reservation whose second OS page is locked."""
    lock = posix_calls.declare(
        linux_calls.libc, "mlock", ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t
    )
    write(lazy.address, 1)
    if lock(lazy.address + OS_PAGE, OS_PAGE) != 0:
        pytest.skip("nothing may be locked here")
    return lazy


def test_locked_memory_is_given_back_too(locked: LazyReservation) -> None:
    locked.decommit(0, PAGE)

    assert kernel_field(locked, "Rss") == 0
    assert read(locked.address, PAGE) == bytes(PAGE)


def test_locked_memory_can_move(locked: LazyReservation) -> None:
    locked.remap(0, 9 * PAGE, PAGE)

    write(locked.address + 9 * PAGE, 2)
    assert read(locked.address, PAGE) == bytes(PAGE)


def test_an_old_kernel_that_keeps_locked_memory_is_quoted(
    locked: LazyReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    madvise = linux_calls.system.madvise

    def advise(address: int, nbytes: int, advice: int) -> int:
        if advice != 24:
            return madvise(address, nbytes, advice)
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(linux_calls.system, "madvise", advise)
    with pytest.raises(BackendCallError) as caught:
        locked.decommit(0, PAGE)

    assert str(caught.value) == (
        "cpu: cannot decommit 2.0 MiB: madvise failed with 22 (Invalid argument)"
    )


LOCK_ALL = (
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "if libc.mlockall({flags}) != 0:\n"
    "    print('refused')\n"
    "    sys.exit()\n"
)


def run_locked(flags: int, code: str) -> str:
    out = run_child(LOCK_ALL.format(flags=flags) + code)
    if out == "refused":
        pytest.skip("nothing may be locked here")
    return out


@pytest.mark.parametrize("flags", [MCL_FUTURE, MCL_FUTURE | MCL_ONFAULT])
def test_mlockall_makes_reservations_strict(flags: int) -> None:
    # A small one first: the large one would take the machine down if it failed.
    out = run_locked(
        flags,
        "linux, before = linux_memory(), resident_nbytes()\n"
        "try:\n"
        "    small = linux.reserve(4 * MIB)\n"
        "    assert isinstance(small, StrictReservation)\n"
        "    assert resident_nbytes() - before < 2 * MIB\n"
        "    large = linux.reserve(96 * GIB)\n"
        "except OutOfMemoryError:\n"
        "    sys.exit(print('refused'))  # without CAP_IPC_LOCK\n"
        "print(type(large).__name__, resident_nbytes() - before < 2 * MIB)\n"
        "large.commit(GIB, PAGE)\n"
        "write(large.address + GIB, 1)\n"
        "large.remap(GIB, 2 * GIB, PAGE)\n"
        "write(large.address + 2 * GIB, 1)\n"
        "large.decommit(2 * GIB, PAGE)\n"
        "print(kernel_field(large, 'Rss'), linux.remap_refusal)\n"
        "print(linux.describe()['commit'])\n",
    )

    assert out.splitlines() == [
        "StrictReservation True",
        "0 mlockall makes all of a lazy reservation resident",
        "strict, by mprotect (mlockall makes all of a lazy reservation resident)",
    ]


def test_what_is_committed_under_mlockall_is_locked() -> None:
    out = run_locked(
        MCL_FUTURE,
        "reservation = linux_memory().reserve(2 * MIB)\n"
        "reservation.commit(MIB, 64 * KIB)\n"
        "print(kernel_field(reservation, 'Rss') // KIB)\n",
    )

    assert out == "64"


def test_a_pool_under_mlockall_takes_what_may_be_locked() -> None:
    out = run_locked(
        MCL_FUTURE,
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"  # root may lock everything
        "pool = Pool('cpu', page_size='64 KiB')\n"
        "memory = pool.allocate(300 * KIB)\n"
        "write(memory.address, 7, 300 * KIB)\n"
        "pool.check()\n"
        "stats = pool.stats()\n"
        "print(stats.committed_nbytes // KIB)\n"
        "may = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]\n"
        "print(may < 0 or stats.reserved_nbytes <= may)\n",
    )

    assert out.split() == ["320", "True"]
