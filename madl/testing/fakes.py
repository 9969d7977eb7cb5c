"""A fake backend: it injects faults, and checks how its caller uses the protocol."""

import contextlib
import dataclasses
import enum
from collections.abc import Iterator
from typing import NamedTuple

from madl.backends.kept import foreign
from madl.backends.protocol import Capability, HugePages, MemoryInfo, Reservation
from madl.errors import (
    BackendCallError,
    MissingCapabilityError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.testing.fake_bytes import FakeBytes, MisuseError

GRANULARITY = 4096
ALIGNMENT = 65536

ADDRESSES_PER_MEMORY = 64
"""How much address space there is, as a multiple of the memory."""

_WITH_BYTES = Capability.HOST_ACCESS | Capability.COPY | Capability.FILL


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


class FakeView(NamedTuple):
    """What ``Capability.VIEW`` makes: the part of a reservation that it stands for.

    Attributes:
        reservation: What it is a part of.
        offset: Where it starts there.
        nbytes: Its length.
    """

    reservation: Reservation
    offset: int
    nbytes: int


class FakeBackend(FakeBytes):
    """A device in this process, of offsets only or with bytes.

    It knows which granules are committed and raises ``MisuseError`` for what the
    protocol rules out. Reservations start at odd multiples of its alignment: what is
    aligned further is so on purpose. What is committed anew holds garbage.

    Args:
        total_nbytes: What the device has; more is refused.
        capabilities: What it claims, and has; SIMULATED always, and SETTLE with COMMIT.
            Bytes with any of HOST_ACCESS, COPY and FILL. The work of streams is done
            when it is waited for. SHARE it has not: it is of one process.
        fail_on_call: The number of a call that fails, counted from 1.
        fault: Which calls fail, said in full.
        device: Its name.
    """

    def __init__(
        self,
        *,
        total_nbytes: int = 8 << 20,
        capabilities: Capability = Capability.COMMIT | Capability.REMAP,
        fail_on_call: int | None = None,
        fault: Fault | None = None,
        device: str = "fake",
    ) -> None:
        super().__init__()
        self.device = device
        if Capability.SHARE in capabilities:
            raise MisuseError("a fake device of one process claims SHARE")
        self.capabilities = capabilities | Capability.SIMULATED
        if Capability.COMMIT in capabilities:
            self.capabilities |= Capability.SETTLE
        self.granularity = GRANULARITY
        self.alignment = ALIGNMENT
        self.page_nbytes = 4 * GRANULARITY
        self.total_nbytes = total_nbytes
        self.fault = Fault(fail_on_call) if fail_on_call else fault
        self.calls: list[str] = []
        self.reservations: dict[int, Reservation] = {}
        self.chosen_pages: tuple[int, HugePages] | None = None
        self.is_prefaulting = False
        self.has_guard_pages = False
        self.node: int | None = None
        self._committed: set[int] = set()  # the addresses of granules
        self._next_address = ALIGNMENT

    @property
    def committed_nbytes(self) -> int:
        """Bytes that are committed now."""
        return len(self._committed) * GRANULARITY

    @property
    def reserved_nbytes(self) -> int:
        """Bytes that are reserved now."""
        return sum(one.nbytes for one in list(self.reservations.values()))

    def is_committed(self, reservation: Reservation, offset: int, nbytes: int) -> bool:
        """Return whether all of a range is committed."""
        start = self._known(reservation) + offset
        return _granules(start, nbytes) <= self._committed

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
        with self._call("reserve", nbytes):
            if self.reserved_nbytes + nbytes > ADDRESSES_PER_MEMORY * self.total_nbytes:
                raise self._refusal("reserve", nbytes, "there are no more addresses")
            commits = Capability.COMMIT in self.capabilities
            if not commits:
                self._ask_for("reserve", nbytes)
            if self.capabilities & _WITH_BYTES:
                address = self._map(nbytes, ALIGNMENT)
            else:
                address = self._next_address
                step = 2 * ALIGNMENT
                self._next_address += (nbytes // step + 1) * step
            is_said = not self.capabilities & _WITH_BYTES or self._is_host_accessible()
            reservation = Reservation(
                f"fake {address:#x}", nbytes, address if is_said else None
            )
            self.reservations[address] = reservation
            self._addresses[reservation.native] = address
            if not commits:
                self._committed |= _granules(address, nbytes)
                self._spoil(address, nbytes)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back, with what is committed in it.

        Work that is queued is done first, as ``Backend.release`` has it.
        """
        address = self._known(reservation)
        committed = self._committed & _granules(address, reservation.nbytes)
        if committed:
            self.finish()
        with self._call("release", reservation.nbytes):
            del self.reservations[address]
            del self._addresses[reservation.native]
            self._committed -= committed
            self._unmap(address)

    def memory_info(self) -> MemoryInfo:
        """Return what the device was made with, and what is left."""
        return MemoryInfo(self.total_nbytes, self.total_nbytes - self.committed_nbytes)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Back a range of which nothing is committed."""
        start = self._range(Capability.COMMIT, reservation, offset, nbytes)
        granules = _granules(start, nbytes)
        if granules & self._committed:
            raise MisuseError(f"commit {offset}, {nbytes}: committed already")
        with self._call("commit", nbytes):
            self._ask_for("commit", nbytes)
            self._committed |= granules
            self._spoil(start, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Take the memory of a range away, all of which is committed."""
        start = self._range(Capability.COMMIT, reservation, offset, nbytes)
        granules = _granules(start, nbytes)
        if not granules <= self._committed:
            raise MisuseError(f"decommit {offset}, {nbytes}: not committed")
        with self._call("decommit", nbytes):
            self._committed -= granules
            self._spoil(start, nbytes)

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Take the memory of a range away, as much of it as is committed."""
        start = self._range(Capability.COMMIT, reservation, offset, nbytes)
        self._committed -= _granules(start, nbytes)

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
        target = reservation if into is None else into
        start = self._range(Capability.REMAP, reservation, source, nbytes)
        to = self._range(Capability.REMAP, target, destination, nbytes)
        given, taken = _granules(start, nbytes), _granules(to, nbytes)
        if not given <= self._committed or taken & self._committed:
            raise MisuseError(f"remap {source} to {destination}, {nbytes}")
        with self._call("remap", nbytes):
            self._committed -= given
            self._committed |= taken
            self._move(start, to, nbytes)
            self._spoil(start, nbytes)

    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        """Note what was chosen; there are no huge pages."""
        if page_nbytes <= 0 or page_nbytes % GRANULARITY:
            raise MisuseError(f"choose pages of {page_nbytes}")
        if huge:
            raise MissingCapabilityError(self.device, "huge pages", "huge=None")
        self.chosen_pages = page_nbytes, huge

    def choose_prefault(self, *, prefault: bool) -> None:
        """Note what was chosen; its bytes are there from the start."""
        self.is_prefaulting = prefault

    def page_nbytes_for(self, limit_nbytes: int) -> int:
        """Return the usual page, for any limit."""
        return self.page_nbytes

    def choose_guard_pages(self) -> None:
        """Note what was chosen; it sees any use of what is not committed as it is."""
        self.has_guard_pages = True

    def choose_node(self, node: int | None) -> None:
        """Note what was chosen; there is one node."""
        if node:
            raise MissingCapabilityError(self.device, f"NUMA node {node}", "node 0")
        self.node = node

    def describe(self) -> dict[str, str]:
        """Return how often it was called."""
        return {"calls": str(len(self.calls))}

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> FakeView:
        """Return an object that stands for a part."""
        self._usable(Capability.VIEW, reservation, offset, nbytes)
        return FakeView(reservation, offset, nbytes)

    def _usable(
        self, needed: Capability, reservation: Reservation, offset: int, nbytes: int
    ) -> int:
        """Return the address of a range of any bytes, all of which is committed."""
        start = self._inside(needed, reservation, offset, nbytes)
        if not _granules(start, nbytes) <= self._committed:
            raise MisuseError(f"{needed.name} of {nbytes} at {offset}: not committed")
        return start

    def _range(
        self, needed: Capability, reservation: Reservation, offset: int, nbytes: int
    ) -> int:
        if offset % GRANULARITY or nbytes % GRANULARITY:
            raise MisuseError(f"{needed.name} of {nbytes} at {offset}: no granules")
        return self._inside(needed, reservation, offset, nbytes)

    def _inside(
        self, needed: Capability, reservation: Reservation, offset: int, nbytes: int
    ) -> int:
        address = self._known(reservation)
        if needed not in self.capabilities:
            raise MisuseError(f"{needed.name} was not claimed")
        if not 0 <= offset < offset + nbytes <= reservation.nbytes:
            raise MisuseError(f"{needed.name} of {nbytes} at {offset}, {reservation}")
        return address + offset

    def _known(self, reservation: Reservation) -> int:
        address = self._addresses.get(reservation.native)
        if address is None or self.reservations[address] is not reservation:
            raise foreign(self.device, reservation)
        return address

    @contextlib.contextmanager
    def _call(self, name: str, nbytes: int) -> Iterator[None]:
        """Note a call and let it take effect in the block, or fail."""
        self.calls.append(name)
        fault = self.fault
        if fault is None or not fault.strikes(len(self.calls)):
            yield
            return
        if fault.has_effect:
            yield
        raise fault.error(self.device, name, nbytes)  # unnamed: no cycle

    def _ask_for(self, call: str, nbytes: int) -> None:
        if self.committed_nbytes + nbytes > self.total_nbytes:
            raise self._refusal(call, nbytes, "the device is full")

    def _refusal(self, call: str, nbytes: int, text: str) -> OutOfMemoryError:
        native = NativeFailure(f"fake_{call}", 2, text)
        return OutOfMemoryError(OutOfMemoryReport(self.device, nbytes, native=native))


def _granules(address: int, nbytes: int) -> set[int]:
    first = address // GRANULARITY * GRANULARITY
    return set(range(first, address + nbytes, GRANULARITY))
