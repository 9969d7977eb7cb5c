"""Every call of the OpenCL backend, and of pyopencl, fails in every operation."""

import pytest

from madl.backends.opencl import OpenclBackend
from madl.testing import Failure, Fault
from tests.backends.opencl.device import pyopencl_or_skip
from tests.backends.opencl.faults import (
    INVALID_VALUE,
    OUT_OF_HOST_MEMORY,
    FaultyCalls,
)
from tests.operations import OPERATIONS
from tests.sweeps import Device, Sweep, cases
from tests.tally import tally

cl = pyopencl_or_skip()
pytestmark = pytest.mark.opencl

KIB = 1 << 10
CODES = {Failure.REFUSED: OUT_OF_HOST_MEMORY, Failure.BROKEN: INVALID_VALUE}


class LibraryFaults:
    """Faults of pyopencl's calls."""

    def __init__(self, calls: FaultyCalls) -> None:
        self._calls = calls
        self.struck: list[str] = []

    def arm(self, fault: Fault) -> None:
        """Let a call fail, counted from the next one on."""
        self._calls.code = CODES[fault.failure]
        self._calls.fail_on(fault.call)

    def disarm(self) -> None:
        """Let no call fail any more."""
        if self._calls.failed and not self.struck:
            self.struck.append(self._calls.failed)
            tally.faults += 1
        self._calls.fail_on(0)

    def left(self) -> object:
        """Return what was taken and not released."""
        return self._calls.taken


def device(memory: str) -> Device:
    def make() -> OpenclBackend:
        return OpenclBackend("opencl:0", memory=memory, _calls=FaultyCalls())  # type: ignore[arg-type]  # in its place

    return Device(
        make,
        64 * KIB,
        {"limit": 60 * 64 * KIB},
        lambda backend: cl.CommandQueue(backend.context),
    )


MEMORIES = {memory: device(memory) for memory in ("buffer", "fine", "coarse")}
FAULTS = {failure.name.lower(): Fault(1, failure) for failure in Failure}
CODE_FAULTS = {failure.name.lower(): Fault(1, failure) for failure in CODES}


@pytest.mark.parametrize(
    ("memory", "operation", "fault"), cases(MEMORIES, OPERATIONS, FAULTS, one_in=5)
)
def test_whichever_call_of_the_backend_fails_nothing_changes(
    memory: str, operation: str, fault: str
) -> None:
    Sweep(MEMORIES[memory], OPERATIONS[operation]).run(FAULTS[fault])


@pytest.mark.parametrize(
    ("memory", "operation", "fault"),
    cases(MEMORIES, OPERATIONS, CODE_FAULTS, one_in=7),
)
def test_whichever_call_of_the_library_fails_nothing_changes(
    memory: str, operation: str, fault: str
) -> None:
    sweep = Sweep(
        MEMORIES[memory],
        OPERATIONS[operation],
        lambda backend: LibraryFaults(backend._calls),
    )

    sweep.run(CODE_FAULTS[fault])


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_an_interrupted_release_may_have_given_back_is_not_given_back_again(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MEMORIES[memory].make()
    reservation = backend.reserve(64 * KIB)
    release = backend._memory.release

    def release_and_interrupt(native: object) -> None:
        release(native)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend._memory, "release", release_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            backend.release(reservation)

    with pytest.raises(ValueError, match="not released yet"):
        backend.release(reservation)
