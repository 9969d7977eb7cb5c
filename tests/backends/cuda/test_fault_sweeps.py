"""Every call of the CUDA backend, and of its driver, fails in every operation."""

from typing import Any

import pytest
from cuda.bindings import driver

from madl.backends.cuda import CudaBackend
from madl.backends.cuda.calls import CudaCalls
from madl.testing import Failure, Fault
from tests.backends.cuda.content import PAGE
from tests.backends.cuda.emulator import INVALID_VALUE, OUT_OF_MEMORY, Emulator
from tests.operations import OPERATIONS
from tests.sweeps import Device, Sweep, cases
from tests.tally import tally

STATUSES = {Failure.REFUSED: OUT_OF_MEMORY, Failure.BROKEN: INVALID_VALUE}


def device(memory: str) -> Device:
    def make() -> CudaBackend:
        backend = CudaBackend(0, memory=memory)
        backend.memory_info()  # the context is made
        return backend

    return Device(make, PAGE, {"limit": 40 * PAGE}, make_stream)


def make_stream(backend: Any) -> int:  # noqa: ANN401  # as a device has it
    with backend._device.current():
        status, stream = driver.cuStreamCreate(0)
    assert int(status) == 0
    return int(stream)


class DriverFaults:
    """Faults of the emulated driver's calls."""

    def __init__(self, emulator: Emulator, backend: CudaBackend) -> None:
        self._emulator, self._backend = emulator, backend
        self.struck: list[str] = []

    def arm(self, fault: Fault) -> None:
        """Let a call fail, counted from the next one on."""
        status, after = STATUSES[fault.failure], fault.has_effect
        self._emulator.fail(fault.call, status, after=after, lasts=fault.lasts)

    def disarm(self) -> None:
        """Let no call fail any more."""
        failed = self._emulator.failed()
        if failed and not self.struck:
            self.struck.append(failed)
            tally.faults += 1
        self._emulator.recover()

    def left(self) -> object:
        """Return what was not given back, but for the handles that are counted."""
        left = self._emulator.left()
        pages = self._backend._pages
        left["handles"] -= 0 if pages is None else pages.kept_nbytes // PAGE
        self._emulator.take_handles()
        return any(left.values())


MEMORIES = {
    memory: device(memory)
    for memory in ("pages", "segments", "async", "pinned", "managed")
}
FAULTS = {failure.name.lower(): Fault(1, failure) for failure in Failure}
STATUS_FAULTS = {failure.name.lower(): Fault(1, failure) for failure in STATUSES}


@pytest.mark.parametrize(
    ("memory", "operation", "fault"), cases(MEMORIES, OPERATIONS, FAULTS, one_in=17)
)
def test_whichever_call_of_the_backend_fails_nothing_changes(
    memory: str, operation: str, fault: str, emulator: Emulator
) -> None:
    emulator.set(memory=64 * PAGE)

    Sweep(MEMORIES[memory], OPERATIONS[operation]).run(FAULTS[fault])


@pytest.mark.parametrize(
    ("memory", "operation", "fault"),
    cases(MEMORIES, OPERATIONS, STATUS_FAULTS, one_in=19),
)
def test_whichever_call_of_the_driver_fails_nothing_changes(
    memory: str, operation: str, fault: str, emulator: Emulator
) -> None:
    emulator.set(memory=64 * PAGE)
    sweep = Sweep(
        MEMORIES[memory],
        OPERATIONS[operation],
        lambda backend: DriverFaults(emulator, backend),
    )

    sweep.run(STATUS_FAULTS[fault])
    emulator.forget_misuses()


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_an_interrupted_release_may_have_given_back_is_not_given_back_again(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = CudaBackend(0, memory=memory)
    reservation = backend.reserve(PAGE)
    call = CudaCalls.call

    def call_and_interrupt(
        calls: CudaCalls, action: str, function: str, *arguments: object
    ) -> object:
        answer = call(calls, action, function, *arguments)
        if "Free" in function:
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(CudaCalls, "call", call_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            backend.release(reservation)

    with pytest.raises(ValueError, match="not released yet"):
        backend.release(reservation)
