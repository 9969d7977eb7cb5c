"""Resource limits and the kernel's limit of VMAs."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host.linux_reservations import LazyReservation
from tests.backends.host import PAGE, kernel_field, run_child, vma_count, write


def test_a_data_limit_makes_reservations_strict_and_commits_fail() -> None:
    out = run_child(
        "limit(resource.RLIMIT_DATA, 512 * MIB)\n"
        "linux = linux_memory()\n"
        "reservation = linux.reserve(2 * GIB)\n"
        "print(type(reservation).__name__)\n"
        "print(linux.describe()['commit'])\n"
        "reservation.commit(0, 64 * MIB)\n"
        "try:\n"
        "    reservation.commit(GIB, GIB)\n"
        "except OutOfMemoryError as error:\n"
        "    print(error)\n"
        "ctypes.memset(reservation.address, 1, 64 * MIB)\n"
        "reservation.remap(0, GIB, 64 * MIB)\n"
        "ctypes.memset(reservation.address + GIB, 1, 64 * MIB)\n"
        "reservation.decommit(GIB, 64 * MIB)\n"
        "reservation.release()\n"
    )

    assert out.splitlines() == [
        "StrictReservation",
        "strict, by mprotect (lazily, mmap failed with 12 (Cannot allocate memory))",
        "cpu: cannot place 1.0 GiB; mprotect failed with 12 (Cannot allocate memory). "
        "Try: free some memory, or end other programs that use this device.",
    ]


def test_an_address_space_limit_is_out_of_memory_and_halving_helps() -> None:
    out = run_child(
        "limit(resource.RLIMIT_AS, GIB)\n"
        "linux, nbytes = linux_memory(), 64 * GIB\n"
        "while True:\n"
        "    try:\n"
        "        reservation = linux.reserve(nbytes)\n"
        "        break\n"
        "    except OutOfMemoryError:\n"
        "        nbytes //= 2\n"
        "print(nbytes // MIB, linux.remap_refusal)\n"
        "reservation.commit(0, PAGE)\n"
        "ctypes.memset(reservation.address, 1, PAGE)\n"
        "reservation.remap(0, PAGE, PAGE)\n"
        "ctypes.memset(reservation.address + PAGE, 1, PAGE)\n"
    )

    assert out == "512 RLIMIT_AS or RLIMIT_DATA is set"


def test_a_limit_lowered_below_what_is_in_use_does_not_unmap_the_destination() -> None:
    out = run_child(
        "linux = linux_memory()\n"
        "reservation = linux.reserve(2 * GIB)\n"
        "ctypes.memset(reservation.address, 1, PAGE)\n"
        "limit(resource.RLIMIT_AS, GIB)\n"
        "reservation.remap(0, GIB, PAGE)\n"
        "ctypes.memset(reservation.address + GIB, 1, PAGE)\n"
        "print('alive', ctypes.string_at(reservation.address, 1))\n"
    )

    assert out == "alive b'\\x00'"


def test_too_many_vmas_end_moving_and_not_recycling(lazy: LazyReservation) -> None:
    lazy._memory._cut_limit = 4

    for page in range(20):
        write(lazy.address + page * PAGE, 1)
        lazy.remap(page * PAGE, (22 + 2 * page) * PAGE, PAGE)
        write(lazy.address + (22 + 2 * page) * PAGE, 2)

    assert kernel_field(lazy, "Rss") == 20 * PAGE
    assert vma_count(lazy) <= 6


def test_running_out_of_vmas_is_answered_and_not_fatal() -> None:
    out = run_child(
        "linux = linux_memory(OS_PAGE)\n"
        "os_page = resource.getpagesize()\n"
        "half = 3 * 34000 * os_page\n"
        "reservation = linux.reserve(2 * half)\n"
        "linux._cut_limit = 1 << 30\n"
        "for page in range(0, 34000):\n"
        "    source = 3 * page * os_page\n"
        "    ctypes.memset(reservation.address + source, 1, 1)\n"
        "    reservation.remap(source, half + source, os_page)\n"
        "    ctypes.memset(reservation.address + half + source, 2, 1)\n"
        "    assert ctypes.string_at(reservation.address + source, 1) == bytes(1)\n"
        "vmas = sum(1 for _ in open('/proc/self/maps'))\n"
        "print(vmas > 60000, linux.cut_count > 60000)\n"
        "reservation.release()\n"
    )

    assert out == "True True"


def test_running_out_of_vmas_in_strict_commits_is_out_of_memory() -> None:
    out = run_child(
        "linux = linux_memory(is_lazy_allowed=False)\n"
        "os_page = resource.getpagesize()\n"
        "reservation = linux.reserve(2 * 34000 * os_page)\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        reservation.commit(2 * count * os_page, os_page)\n"
        "        count += 1\n"
        "except OutOfMemoryError as error:\n"
        "    print(30000 < count < 33000, error.report.native)\n"
        "reservation.decommit(0, os_page)\n"
        "reservation.release()\n"
    )

    assert out == "True mprotect failed with 12 (Cannot allocate memory)"
