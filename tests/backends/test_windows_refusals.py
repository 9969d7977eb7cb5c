"""What an emulated Windows refuses or grants, which a real one does at its own time."""

import ctypes
from collections.abc import Callable, Iterator

import pytest

from madl.backends.host.windows import WindowsMemory
from madl.backends.host.windows_calls import (
    JOB_MEMORY_USAGE,
    OUT_OF_MEMORY,
    WindowsCalls,
)
from madl.backends.protocol import MemoryInfo
from madl.errors import BackendCallError, OutOfMemoryError
from tests.backends.emulated.kernel32 import Kernel32, load

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def kernel32() -> Iterator[Kernel32]:
    kernel32 = load()
    yield kernel32
    assert (kernel32.reservation_count, kernel32.committed_nbytes) == (0, 0)
    assert not kernel32.library.EmuHasOpenToken()


@pytest.fixture
def memory(kernel32: Kernel32) -> WindowsMemory:
    return WindowsMemory(_calls=kernel32.calls)


def test_a_reservation_commits_nothing(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    reservation = memory.reserve(64 * GIB)

    assert kernel32.committed_nbytes == 0
    reservation.release()


def test_a_commit_over_the_limit_is_out_of_memory(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    kernel32.library.EmuSetMemory(GIB, 64 * MIB)
    reservation = memory.reserve(GIB)
    reservation.commit(0, 48 * MIB)

    with pytest.raises(OutOfMemoryError) as caught:
        reservation.commit(48 * MIB, 32 * MIB)

    assert str(caught.value) == (
        "cpu: cannot place 32.0 MiB; VirtualAlloc failed with 1455 (The paging file is "
        "too small for this operation to complete.). "
        "Try: free some memory, or end other programs that use this device."
    )
    assert kernel32.committed_nbytes == 48 * MIB
    reservation.release()


@pytest.mark.parametrize("code", sorted(OUT_OF_MEMORY))
def test_every_code_for_no_memory_is_out_of_memory(
    kernel32: Kernel32, memory: WindowsMemory, code: int
) -> None:
    reservation = memory.reserve(MIB)
    kernel32.fail(1, code)

    with pytest.raises(OutOfMemoryError):
        reservation.commit(0, MIB)

    reservation.release()


@pytest.mark.parametrize("code", [5, 6, 87, 487])
def test_every_other_code_is_a_failed_call(
    kernel32: Kernel32, memory: WindowsMemory, code: int
) -> None:
    reservation = memory.reserve(MIB)
    kernel32.fail(1, code)

    with pytest.raises(BackendCallError, match=rf"failed with {code} \("):
        reservation.commit(0, MIB)

    reservation.release()


def test_a_refused_remap_leaves_the_source_committed(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    reservation = memory.reserve(4 * MIB)
    reservation.commit(0, MIB)
    kernel32.fail(2, 1455)

    with pytest.raises(OutOfMemoryError):
        reservation.remap(0, 2 * MIB, MIB)

    ctypes.memset(reservation.address, 1, MIB)
    reservation.release()


def test_a_failed_decommit_and_release_change_nothing(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    reservation = memory.reserve(MIB)
    reservation.commit(0, MIB)
    kernel32.fail(1, 5, lasts=True)

    with pytest.raises(BackendCallError, match="cannot decommit"):
        reservation.decommit(0, MIB)
    with pytest.raises(BackendCallError, match="cannot release"):
        reservation.release()

    kernel32.recover()
    assert kernel32.committed_nbytes == MIB
    reservation.release()


def test_an_error_without_a_text_is_told_by_its_number(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    kernel32.fail(1, 4711)

    with pytest.raises(BackendCallError, match=r"VirtualAlloc failed with 4711 \(\)$"):
        memory.reserve(MIB)


def test_what_is_promised_to_others_is_not_available(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    kernel32.library.EmuSetMemory(16 * GIB, 2 * GIB)

    assert memory.memory_info() == MemoryInfo(16 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("of_process", "of_job", "expected"),
    [
        (GIB, 0, MemoryInfo(GIB, GIB - MIB)),
        (0, 2 * GIB, MemoryInfo(2 * GIB, 2 * GIB - 101 * MIB)),
        (GIB, 50 * MIB, MemoryInfo(50 * MIB, 0)),
    ],
)
def test_a_job_limits_what_there_is(
    kernel32: Kernel32,
    memory: WindowsMemory,
    of_process: int,
    of_job: int,
    expected: MemoryInfo,
) -> None:
    reservation = memory.reserve(MIB)
    reservation.commit(0, MIB)
    kernel32.library.EmuSetJob(of_process, of_job, 100 * MIB)

    assert memory.memory_info() == expected
    reservation.release()


def test_a_windows_that_does_not_count_for_a_job_counts_this_process(
    kernel32: Kernel32,
) -> None:
    class Older(WindowsCalls):
        def __getitem__(self, name: str) -> Callable[..., int]:
            function = super().__getitem__(name)
            if name != "QueryInformationJobObject":
                return function
            return lambda job, question, *rest: (
                0 if question == JOB_MEMORY_USAGE else function(job, question, *rest)
            )

    kernel32.library.EmuSetJob(0, GIB, 100 * MIB)
    memory = WindowsMemory(_calls=Older((kernel32.library,) * 3, kernel32.last_error))

    assert memory.memory_info() == MemoryInfo(GIB, GIB)


def test_describe_has_the_limits_of_a_job(
    kernel32: Kernel32, memory: WindowsMemory
) -> None:
    kernel32.library.EmuSetJob(GIB, 2 * GIB, 0)

    facts = memory.describe()

    assert facts["job's limit for a process"] == "1.0 GiB"
    assert facts["job's limit"] == "2.0 GiB"
