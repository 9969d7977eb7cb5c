"""How a fake device fails, when it is told to."""

import dataclasses
import enum

from madl.errors import (
    BackendCallError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)


class MisuseError(AssertionError):
    """The caller broke the protocol. No ``MadlError``: nobody may handle it."""


class Failure(enum.Enum):
    """In which way a call fails."""

    REFUSED = "the device is out of memory, where it can be"
    BROKEN = "the device fails for another reason"
    INTERRUPTED = "the user presses Ctrl-C"


@dataclasses.dataclass(frozen=True)
class Fault:
    """Calls that fail."""

    call: int
    """The first of them, counted from 1."""
    failure: Failure = Failure.BROKEN
    lasts: bool = False
    """Whether every call from there on fails too."""
    has_effect: bool = False
    """Whether it fails after taking effect, which the protocol forbids."""

    def strikes(self, number: int) -> bool:
        """Return whether a call fails, counted from 1."""
        return number == self.call or (self.lasts and number > self.call)

    def error(self, device: str, call: str, nbytes: int) -> BaseException:
        """Return what a call raises."""
        if self.failure is Failure.INTERRUPTED:
            return KeyboardInterrupt()
        native = NativeFailure(f"fake_{call}", 1, "as the test wanted")
        if self.failure is Failure.REFUSED and call in ("reserve", "commit", "remap"):
            report = OutOfMemoryReport(device, nbytes, native=native)
            return OutOfMemoryError(report)
        return BackendCallError(device, call, native)
