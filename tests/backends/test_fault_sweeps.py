"""Every call to a device fails, in every operation; nothing is lost by it."""

import pytest

from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Capability, Reservation
from madl.backends.shared import SharedBackend, madl_devices
from madl.backends.sim import SimBackend
from madl.testing import Failure, FakeBackend, Fault
from tests.operations import OPERATIONS
from tests.sweeps import Device, Sweep, cases

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BYTES = Capability.HOST_ACCESS | Capability.COPY | Capability.FILL
MORE = BYTES | Capability.VIEW | Capability.STREAM_ORDERED
COMMIT, REMAP = Capability.COMMIT, Capability.REMAP


def fake(capabilities: Capability) -> FakeBackend:
    return FakeBackend(capabilities=capabilities, total_nbytes=16 * MIB)


class FewAddresses(FakeBackend):
    """A device of which reservations have to be halved, and then once more."""

    def __init__(self) -> None:
        super().__init__(capabilities=COMMIT | REMAP | BYTES, total_nbytes=16 * MIB)

    def reserve(self, nbytes: int) -> Reservation:
        """Refuse more than there is memory."""
        if nbytes > 2 * self.total_nbytes:
            raise self._refusal("reserve", nbytes, "there are no more addresses")
        return super().reserve(nbytes)


SMALL = {"page_size": 64 * KIB, "limit": 20 * 64 * KIB}
DEVICES = {
    "sim": Device(lambda: SimBackend(total_nbytes=GIB), 64 * KIB, SMALL),
    "sim segments": Device(
        lambda: SimBackend(total_nbytes=GIB, commits=False), 2 * MIB
    ),
    "remap": Device(lambda: fake(COMMIT | REMAP | MORE), 64 * KIB, SMALL),
    "pages": Device(lambda: fake(COMMIT | MORE), 64 * KIB, SMALL),
    "segments": Device(lambda: fake(MORE), 64 * KIB, {"limit": 40 * 64 * KIB}),
    "no recycling": Device(
        lambda: fake(COMMIT | BYTES), 64 * KIB, {**SMALL, "recycle": False}
    ),
    "no pooling": Device(
        lambda: fake(COMMIT | MORE), 64 * KIB, {**SMALL, "pooling": False}
    ),
    "few addresses": Device(FewAddresses, 64 * KIB, SMALL),
    "cpu": Device(CpuBackend, 64 * KIB, SMALL),
    "cpu prefault": Device(CpuBackend, 64 * KIB, {**SMALL, "prefault": True}),
}
if madl_devices():
    DEVICES["shared"] = Device(SharedBackend, 64 * KIB, {"limit": 40 * 64 * KIB})

FAULTS = {
    **{failure.name.lower(): Fault(1, failure) for failure in Failure},
    **{
        f"{failure.name.lower()} from there on": Fault(1, failure, lasts=True)
        for failure in Failure
    },
    "interrupted afterwards": Fault(1, Failure.INTERRUPTED, has_effect=True),
}
CASES = cases(DEVICES, OPERATIONS, FAULTS, one_in=5)


@pytest.mark.parametrize(("device", "operation", "fault"), CASES)
def test_whichever_call_fails_nothing_changes(
    device: str, operation: str, fault: str
) -> None:
    Sweep(DEVICES[device], OPERATIONS[operation]).run(FAULTS[fault])
