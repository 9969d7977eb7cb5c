"""Every call of an emulated Windows fails, in every operation; nothing is lost."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("kernel32 is emulated on Linux", allow_module_level=True)

from madl.backends.cpu import CpuBackend
from madl.backends.host.windows import WindowsMemory
from madl.testing import Failure, Fault
from tests.backends.emulated.kernel32 import Kernel32, load
from tests.operations import OPERATIONS
from tests.sweeps import Device, Sweep, cases
from tests.tally import tally

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NOT_ENOUGH_MEMORY, ACCESS_DENIED = 8, 5
CODES = {Failure.REFUSED: NOT_ENOUGH_MEMORY, Failure.BROKEN: ACCESS_DENIED}
FAULTS = {
    f"{failure.name.lower()}{' from there on' * lasts}": Fault(1, failure, lasts=lasts)
    for failure in CODES
    for lasts in (False, True)
}


class WindowsFaults:
    """Faults of the calls that reserve, commit, decommit and release."""

    def __init__(self, kernel32: Kernel32) -> None:
        self._kernel32 = kernel32
        self._armed: tuple[Fault, int] | None = None
        self.struck: list[str] = []

    def arm(self, fault: Fault) -> None:
        """Let calls fail, counted from the next one on."""
        self._armed = fault, self._kernel32.call_count
        self._kernel32.fail(fault.call, CODES[fault.failure], lasts=fault.lasts)

    def disarm(self) -> None:
        """Let no call fail any more."""
        self._kernel32.recover()
        if self._armed is None:
            return
        fault, before = self._armed
        self._armed = None
        failed = self._kernel32.call_count - before - fault.call + 1
        failed = max(failed if fault.lasts else min(failed, 1), 0)
        self.struck += ["a call"] * failed
        tally.faults += failed

    def left(self) -> object:
        """Return what is committed, and how many reservations there are."""
        counts = self._kernel32.committed_nbytes, self._kernel32.reservation_count
        return counts if any(counts) else None


@pytest.fixture
def kernel32() -> Kernel32:
    kernel32 = load()
    kernel32.library.EmuGrantLockMemory()
    kernel32.library.EmuSetMemory(GIB, GIB)
    return kernel32


def device(kernel32: Kernel32 | None, pages: str) -> Device:
    def make() -> CpuBackend:
        if kernel32 is None:
            return CpuBackend()
        return CpuBackend(_memory=WindowsMemory(_calls=kernel32.calls))

    if pages == "large":
        options = {"page_size": 2 * MIB, "limit": 40 * MIB, "huge_pages": True}
        return Device(make, 2 * MIB, options)
    return Device(make, 64 * KIB, {"page_size": 64 * KIB, "limit": 20 * 64 * KIB})


SMALL, LARGE = ({pages: device(None, pages)} for pages in ("small", "large"))
# Large pages go one by one: what is half done by then needs a call that works.
ONCE = {name: fault for name, fault in FAULTS.items() if not fault.lasts}


@pytest.mark.parametrize(
    ("pages", "operation", "fault"),
    [
        *cases(SMALL, OPERATIONS, FAULTS, one_in=3),
        *cases(LARGE, OPERATIONS, ONCE, one_in=3),
    ],
)
def test_whichever_system_call_fails_nothing_changes(
    pages: str, operation: str, fault: str, kernel32: Kernel32
) -> None:
    sweep = Sweep(
        device(kernel32, pages),
        OPERATIONS[operation],
        lambda _: WindowsFaults(kernel32),
    )

    sweep.run(FAULTS[fault])


def test_pages_of_an_interrupted_decommit_are_usable_still(
    kernel32: Kernel32, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = WindowsMemory(_calls=kernel32.calls)
    reservation = memory.reserve(4 * MIB)
    reservation.commit(0, 2 * MIB)
    free = kernel32.calls.virtual_free

    def free_and_interrupt(*arguments: int) -> int:
        free(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kernel32.calls, "virtual_free", free_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            reservation.decommit(0, MIB)

    assert kernel32.committed_nbytes == 2 * MIB
    reservation.release()
