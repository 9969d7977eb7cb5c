"""A backend that takes nothing on trust, and fails when it is told to."""

import dataclasses
import enum

from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import (
    BackendCallError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)

GRANULARITY = 4096
ALIGNMENT = 65536


class MisuseError(AssertionError):
    """The pool broke the backend protocol. No ``MadlError``: nobody may handle it."""


class Failure(enum.Enum):
    """In which way a call fails. It has no effect then, as the protocol demands."""

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


class FakeBackend:
    """A device of addresses without memory.

    It knows which granules are committed, and raises ``MisuseError`` for whatever the
    protocol rules out. Reservations start at odd multiples of its alignment: what is
    aligned further is so on purpose.

    Args:
        total_nbytes: What the device has; more is refused.
        commits: Whether it has ``Capability.COMMIT``.
        remaps: Whether it has ``Capability.REMAP``.
        fault: Which calls fail.
    """

    def __init__(
        self,
        *,
        total_nbytes: int = 1 << 20,
        commits: bool = True,
        remaps: bool = True,
        fault: Fault | None = None,
    ) -> None:
        self.device = "fake"
        self.capabilities = Capability.NONE
        if commits:
            self.capabilities |= Capability.COMMIT
        if commits and remaps:
            self.capabilities |= Capability.REMAP
        self.granularity = GRANULARITY
        self.alignment = ALIGNMENT
        self.page_nbytes = 4 * GRANULARITY
        self.total_nbytes = total_nbytes
        self.fault = fault
        self.calls: list[str] = []
        self.reservations: dict[int, Reservation] = {}
        self._committed: set[int] = set()  # the addresses of granules
        self._next_address = ALIGNMENT

    @property
    def committed_nbytes(self) -> int:
        """Bytes that are committed now."""
        return len(self._committed) * GRANULARITY

    def is_committed(self, address: int, nbytes: int) -> bool:
        """Return whether all of a range of addresses is committed."""
        return _granules(address, nbytes) <= self._committed

    def fail(self, fault: Fault) -> None:
        """Let calls fail, counted from the next one on."""
        self.fault = dataclasses.replace(fault, call=len(self.calls) + fault.call)

    def recover(self) -> None:
        """Let no call fail any more."""
        self.fault = None

    def reserve(self, nbytes: int) -> Reservation:
        """Take addresses; without COMMIT, memory too."""
        if nbytes <= 0 or nbytes % GRANULARITY:
            raise MisuseError(f"reserve {nbytes}")
        address = self._next_address
        reservation = Reservation(f"fake {address:#x}", nbytes, address)
        self._call("reserve")
        if Capability.COMMIT not in self.capabilities:
            self._take(_granules(address, nbytes))
        self.reservations[address] = reservation
        step = 2 * ALIGNMENT
        self._next_address += (nbytes // step + 1) * step
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back, with what is committed in it."""
        address = self._known(reservation)
        self._call("release")
        del self.reservations[address]
        self._committed -= _granules(address, reservation.nbytes)

    def memory_info(self) -> MemoryInfo:
        """Return what the device was made with, and what is left."""
        return MemoryInfo(self.total_nbytes, self.total_nbytes - self.committed_nbytes)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Back a range of which nothing is committed."""
        granules = self._range("commit", reservation, offset, nbytes)
        if granules & self._committed:
            raise MisuseError(f"commit {offset}, {nbytes}: committed already")
        self._call("commit")
        self._take(granules)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Take the memory of a range away, all of which is committed."""
        granules = self._range("decommit", reservation, offset, nbytes)
        if not granules <= self._committed:
            raise MisuseError(f"decommit {offset}, {nbytes}: not committed")
        self._call("decommit")
        self._committed -= granules

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Move memory to a range of which nothing is committed."""
        given = self._range("remap", reservation, source, nbytes)
        taken = self._range("remap", into or reservation, destination, nbytes)
        if Capability.REMAP not in self.capabilities:
            raise MisuseError("remap without REMAP")
        if not given <= self._committed or taken & self._committed:
            raise MisuseError(f"remap {source} to {destination}, {nbytes}")
        self._call("remap")
        self._committed -= given
        self._committed |= taken

    def _call(self, name: str) -> None:
        """Note a call that is about to take effect, or let it fail."""
        self.calls.append(name)
        fault, number = self.fault, len(self.calls)
        if fault is None or number < fault.call:
            return
        if number > fault.call and not fault.lasts:
            return
        if fault.failure is Failure.INTERRUPTED:
            raise KeyboardInterrupt
        native = NativeFailure(f"fake_{name}", 1, "as the test wanted")
        if fault.failure is Failure.REFUSED and name not in ("release", "decommit"):
            raise OutOfMemoryError(OutOfMemoryReport(self.device, 0, native=native))
        raise BackendCallError(self.device, name, native)

    def _take(self, granules: set[int]) -> None:
        if self.committed_nbytes + len(granules) * GRANULARITY > self.total_nbytes:
            native = NativeFailure("fake_take", 2, "the device is full")
            raise OutOfMemoryError(OutOfMemoryReport(self.device, 0, native=native))
        self._committed |= granules

    def _known(self, reservation: Reservation) -> int:
        address = reservation.address
        if address is None or self.reservations.get(address) != reservation:
            raise MisuseError(f"{reservation} is not reserved, or no more")
        return address

    def _range(
        self, what: str, reservation: Reservation, offset: int, nbytes: int
    ) -> set[int]:
        address = self._known(reservation)
        is_inside = 0 <= offset < offset + nbytes <= reservation.nbytes
        if not is_inside or offset % GRANULARITY or nbytes % GRANULARITY:
            raise MisuseError(f"{what} {offset}, {nbytes} of {reservation}")
        if Capability.COMMIT not in self.capabilities:
            raise MisuseError(f"{what} without COMMIT")
        return _granules(address + offset, nbytes)


def _granules(address: int, nbytes: int) -> set[int]:
    first = address // GRANULARITY * GRANULARITY
    return set(range(first, address + nbytes, GRANULARITY))
