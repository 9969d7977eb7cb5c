"""Taking address space from the running kernel, and giving it back."""

import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends.host.linux import LinuxMemory
from madl.errors import OutOfMemoryError
from tests.backends.host import (
    GIB,
    MIB,
    OS_PAGE,
    PAGE,
    ROOM,
    linux_memory,
    resident_nbytes,
    write,
)


def test_reservations_start_at_a_multiple_of_the_alignment(memory: LinuxMemory) -> None:
    reservations = [memory.reserve(OS_PAGE * n) for n in (1, 3, 511, 513)]

    assert [each.address % memory.alignment for each in reservations] == [0] * 4
    for each in reservations:
        each.release()


def test_a_reservation_takes_address_space_only(memory: LinuxMemory) -> None:
    before = resident_nbytes()

    reservation = memory.reserve(min(64 * GIB, ROOM))

    assert resident_nbytes() - before < 4 * MIB
    reservation.release()


def test_release_returns_the_address_space(memory: LinuxMemory) -> None:
    # Together 2 PiB, more than 16 times what x86 has; on 32 bits 64 times.
    for _ in range(256):
        reservation = memory.reserve(min(8 << 40, ROOM))
        write(reservation.address + 5 * PAGE, 1, OS_PAGE)
        reservation.release()


def test_nothing_is_kept_around_a_reservation(memory: LinuxMemory) -> None:
    def address_space_nbytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * OS_PAGE

    before = address_space_nbytes()

    reservations = [memory.reserve(3 * OS_PAGE) for _ in range(64)]

    assert address_space_nbytes() - before < 4 * MIB
    for each in reservations:
        each.release()


@pytest.mark.parametrize("is_lazy_allowed", [True, False])
@pytest.mark.parametrize("nbytes", [1 << 47, (1 << 64) - OS_PAGE, 1 << 64, 1 << 70])
def test_an_impossible_reservation_is_out_of_memory(
    nbytes: int, is_lazy_allowed: bool
) -> None:
    memory = linux_memory(is_lazy_allowed=is_lazy_allowed)

    with pytest.raises(OutOfMemoryError) as caught:
        memory.reserve(nbytes)

    assert caught.value.requested == nbytes
    assert (
        str(caught.value.report.native)
        == "mmap failed with 12 (Cannot allocate memory)"
    )


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="there is no number so large")
def test_the_whole_text_of_a_refused_reservation(memory: LinuxMemory) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        memory.reserve(1 << 50)

    assert str(caught.value) == (
        "cpu: cannot place 1.0 PiB; mmap failed with 12 (Cannot allocate memory). "
        "Try: free some memory, or end other programs that use this device."
    )
