"""Every call of emulated systems fails, in every operation; nothing is lost by it."""

from collections.abc import Callable, Iterator

import pytest

from madl.backends.cpu import CpuBackend
from madl.testing import Failure, Fault
from tests.backends.emulated.posix import OS_PAGES, Posix, open_memory
from tests.backends.faulty_system import Call, SystemFaults
from tests.operations import OPERATIONS
from tests.sweeps import Device, Sweep, cases

KIB = 1 << 10
NAMES = ("mmap", "munmap", "mprotect", "madvise", "mremap")
OPTIONS = {"page_size": 64 * KIB, "limit": 20 * 64 * KIB}
FAULTS = {
    f"{failure.name.lower()}{' afterwards' * has_effect}": Fault(
        1, failure, has_effect=has_effect
    )
    for failure in Failure
    for has_effect in (False, True)
}
HERE = {"": Device(CpuBackend, 64 * KIB, OPTIONS)}
CASES = [
    (system, operation, fault)
    for system in OS_PAGES
    for _, operation, fault in cases(HERE, OPERATIONS, FAULTS, one_in=17)
    # Android's reservations try something on an OS page, which a failure may leave.
    if (system, operation) != ("android", "open")
]


@pytest.fixture
def system_faults() -> Iterator[Callable[[object], SystemFaults]]:
    made: list[SystemFaults] = []

    def make(backend: object) -> SystemFaults:
        calls = backend._memory.calls  # type: ignore[attr-defined]  # of the host
        places = [Call(calls, name, name) for name in NAMES if hasattr(calls, name)]
        for one in made:
            one.restore()
        made.append(SystemFaults(places))
        return made[-1]

    yield make
    for one in made:
        one.restore()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("system", "operation", "fault"), CASES)
def test_whichever_system_call_fails_nothing_changes(
    system: str,
    operation: str,
    fault: str,
    request: pytest.FixtureRequest,
) -> None:
    posix: Posix = (
        request.getfixturevalue("android")
        if system == "android"
        else request.getfixturevalue("emulate")(system)
    )
    device = Device(lambda: CpuBackend(_memory=open_memory(posix)), 64 * KIB, OPTIONS)
    # After the system, and so undone before it: what it puts back is that system's.
    system_faults = request.getfixturevalue("system_faults")

    Sweep(device, OPERATIONS[operation], system_faults).run(FAULTS[fault])
