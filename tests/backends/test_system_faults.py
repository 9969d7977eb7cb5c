"""Every system call of the host fails, in every operation; nothing is lost by it."""

import sys
from collections.abc import Iterator

import pytest

if sys.platform != "linux":
    pytest.skip("other systems are emulated on Linux", allow_module_level=True)

from madl.backends.cpu import CpuBackend
from madl.backends.host import (
    linux_calls,
    shared_posix,
)
from madl.backends.shared import SharedBackend
from madl.testing import Failure, Fault
from tests.backends.faulty_system import Call, SystemFaults
from tests.backends.host import KIB, linux_memory
from tests.operations import OPERATIONS
from tests.sweeps import Device, Sweep, cases

SMALL = {"page_size": 64 * KIB, "limit": 20 * 64 * KIB}
NAMES = ("mmap", "munmap", "mprotect", "madvise", "mremap")
CALLS = [
    *(Call(linux_calls.system, name, name) for name in NAMES),
    *(Call(shared_posix._calls, name, name) for name in ("mmap", "munmap")),
]


def lazy() -> CpuBackend:
    return CpuBackend(_memory=linux_memory())


def strict() -> CpuBackend:
    return CpuBackend(_memory=linux_memory(is_lazy_allowed=False))


DEVICES = {
    "lazy": Device(lazy, 64 * KIB, SMALL),
    "lazy, prefault": Device(lazy, 64 * KIB, {**SMALL, "prefault": True}),
    "strict": Device(strict, 64 * KIB, SMALL),
    "strict, prefault": Device(strict, 64 * KIB, {**SMALL, "prefault": True}),
    "shared": Device(SharedBackend, 64 * KIB, {"limit": 40 * 64 * KIB}),
}
FAULTS = {
    f"{failure.name.lower()}{' afterwards' * has_effect}": Fault(
        1, failure, has_effect=has_effect
    )
    for failure in Failure
    for has_effect in (False, True)
}
CASES = cases(DEVICES, OPERATIONS, FAULTS, one_in=11)


@pytest.fixture
def faults() -> Iterator[SystemFaults]:
    faults = SystemFaults(CALLS)
    yield faults
    faults.restore()


# Nothing can be raised from a finalizer that is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("device", "operation", "fault"), CASES)
def test_whichever_system_call_fails_nothing_changes(
    device: str, operation: str, fault: str, faults: SystemFaults
) -> None:
    sweep = Sweep(DEVICES[device], OPERATIONS[operation], lambda _: faults)

    sweep.run(FAULTS[fault])
