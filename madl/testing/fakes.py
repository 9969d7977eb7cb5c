"""A fake backend: it injects faults, and checks how its caller uses the protocol.

It has offsets only, or content too: bytes, copies, and streams whose work is done when
it is waited for.
"""

import contextlib
import ctypes
import dataclasses
import enum
import functools
import mmap
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from madl.backends.kept import foreign
from madl.backends.protocol import (
    Backend,
    Capability,
    HugePages,
    MemoryInfo,
    Reservation,
    Staging,
)
from madl.errors import (
    BackendCallError,
    MissingCapabilityError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.hotpath.reentrancy import living

GRANULARITY = 4096
ALIGNMENT = 65536

ADDRESSES_PER_MEMORY = 64
"""How much address space there is, as a multiple of the memory."""

GARBAGE = 0xA5

_WITH_BYTES = Capability.HOST_ACCESS | Capability.COPY | Capability.FILL


class MisuseError(AssertionError):
    """The caller broke the protocol. No ``MadlError``, so that nothing handles it."""


class FakeStream:
    """An ordered queue of work that does nothing by itself.

    A read that does not wait finds the old bytes; when work runs whose memory was
    released, it raises.
    """

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.done_count = 0
        self._work: list[Callable[[], None]] = []

    @property
    def queued_count(self) -> int:
        """How much work was ever queued."""
        return self.done_count + len(self._work)

    def queue(self, work: Callable[[], None]) -> None:
        """Put work at the end."""
        self._work.append(work)

    def pump(self, count: int | None = None) -> int:
        """Do the next ``count`` pieces of work, or all; return how many were done."""
        wanted = len(self._work) if count is None else min(count, len(self._work))
        for _ in range(wanted):
            self.done_count += 1
            self._work.pop(0)()
        return wanted


class FakeEvent(NamedTuple):
    """A position in a stream.

    Attributes:
        stream: The stream.
        position: How much work is before it.
    """

    stream: FakeStream
    position: int

    def is_done(self) -> bool:
        """Return whether all work before it is done."""
        return self.stream.done_count >= self.position

    def reach(self) -> None:
        """Do what is left of the work before it."""
        self.stream.pump(max(self.position - self.stream.done_count, 0))


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


_Range = tuple["FakeBackend", Capability, Reservation, int]
"""What work is about: a device that must claim something, and where it starts there."""


class FakeBackend:
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
        # Its work runs when it is queued, after what it has to wait for.
        self.default_stream = FakeStream(self)
        self._streams: weakref.WeakSet[FakeStream] = weakref.WeakSet()
        self._addresses: dict[object, int] = {}
        self._maps: dict[int, mmap.mmap] = {}

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
            has_bytes = bool(self.capabilities & _WITH_BYTES)
            if has_bytes:
                address = self._map(nbytes)
            else:
                address = self._next_address
                step = 2 * ALIGNMENT
                self._next_address += (nbytes // step + 1) * step
            is_shown = Capability.HOST_ACCESS in self.capabilities or not has_bytes
            reservation = Reservation(
                f"fake {address:#x}", nbytes, address if is_shown else None, address
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
            self._maps.pop(address, None)

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

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy to the device; on a stream, what ``source`` holds by then."""
        nbytes = source.nbytes

        def work(start: int) -> None:
            ctypes.memmove(start, source.tobytes(), nbytes)

        ranges = [(self, Capability.COPY, reservation, offset)]
        self._do("copy_from_host", nbytes, stream, work, ranges)

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy from the device."""
        nbytes = destination.nbytes

        def work(start: int) -> None:
            destination.cast("B")[:] = ctypes.string_at(start, nbytes)

        ranges = [(self, Capability.COPY, reservation, offset)]
        self._do("copy_to_host", nbytes, stream, work, ranges)

    def copy_inside(
        self,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        """Copy inside the device, between ranges that do not overlap."""
        if source is destination and abs(source_offset - destination_offset) < nbytes:
            raise MisuseError(f"copy of {nbytes} inside the device overlaps itself")
        ranges = [
            (self, Capability.COPY, source, source_offset),
            (self, Capability.COPY, destination, destination_offset),
        ]
        work = functools.partial(self._move, nbytes=nbytes)
        self._do("copy_inside", nbytes, stream, work, ranges)

    def reaches(self, backend: Backend) -> bool:
        """Return whether another backend is a fake one."""
        return isinstance(backend, FakeBackend)

    def shares_streams(self, backend: Backend) -> bool:
        """Return whether another backend is this one."""
        return isinstance(backend, FakeBackend) and backend is self

    def copy_from_device(
        self,
        backend: Backend,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        """Copy from another fake device."""
        if not isinstance(backend, FakeBackend):
            raise MisuseError(f"copy from {backend!r}, which is not reached")
        backend.default_stream.pump()
        ranges = [
            (backend, Capability.COPY, source, source_offset),
            (self, Capability.PEER_COPY, destination, destination_offset),
        ]
        work = functools.partial(self._move, nbytes=nbytes)
        self._do("copy_from_device", nbytes, stream, work, ranges)

    def fill(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
        *,
        stream: object = None,
    ) -> None:
        """Set every byte of a range."""
        if not 0 <= value <= 255:
            raise MisuseError(f"fill with {value}")

        def work(start: int) -> None:
            ctypes.memset(start, value, nbytes)

        ranges = [(self, Capability.FILL, reservation, offset)]
        self._do("fill", nbytes, stream, work, ranges)

    def make_stream(self) -> FakeStream:
        """Return a stream of this device."""
        stream = FakeStream(self)
        self._streams.add(stream)
        return stream

    def finish(self) -> None:
        """Do all work of all streams."""
        for stream in [self.default_stream, *living(self._streams)]:
            stream.pump()

    def stream_key(self, stream: object) -> Hashable:
        """Return a stream's identity."""
        return id(self._stream(stream))

    def record(self, stream: object) -> FakeEvent:
        """Return the position after what is queued now."""
        known = self._stream(stream)
        return FakeEvent(known, known.queued_count)

    def is_done(self, event: object) -> bool:
        """Return whether it was waited for, or later work of its stream."""
        return _event(event).is_done()

    def wait(self, stream: object, event: object) -> None:
        """Let work queued later wait."""
        self._stream(stream).queue(_event(event).reach)

    def synchronize(self, event: object) -> None:
        """Do the work before an event."""
        _event(event).reach()

    def staging(self, host: memoryview, stream: object) -> Staging | None:
        """Let any host memory be staged, in a stream of its own for none."""
        own = self.make_stream() if stream is None else self._stream(stream)
        return Staging("cpu", own, own.pump)

    def is_capturing(self, stream: object) -> bool:
        """Return False: work is never captured here, but a subclass may say so."""
        self._stream(stream)
        return False

    def stream_handle(self, stream: object) -> int:
        """Return a number for a stream, which no device knows."""
        return id(self._stream(stream))

    def buffer_over(self, address: int, nbytes: int, owner: object) -> "FakeExport":
        """Return what exports a range as host memory."""
        return FakeExport(address, nbytes, owner)

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

    def _do(
        self,
        name: str,
        nbytes: int,
        stream: object,
        work: Callable[..., None],
        ranges: list[_Range],
    ) -> None:
        """Do work on committed ranges, or queue it; they must be committed then too."""

        def places() -> list[int]:
            return [
                device._usable(needed, reservation, offset, nbytes)
                for device, needed, reservation, offset in ranges
            ]

        places()
        with self._call(name, nbytes):
            if stream is None:
                self.default_stream.pump()
                work(*places())
            else:
                self._stream(stream).queue(lambda: work(*places()))

    def _stream(self, stream: object) -> FakeStream:
        if Capability.STREAM_ORDERED not in self.capabilities:
            raise MisuseError("STREAM_ORDERED was not claimed")
        if stream is None:
            return self.default_stream
        if not isinstance(stream, FakeStream):
            raise TypeError(f"stream must be a FakeStream, got {stream!r}")
        if stream.owner is not self:
            raise ValueError(f"the stream is of another device than {self.device}")
        return stream

    def _map(self, nbytes: int) -> int:
        """Take memory that starts at an odd multiple of the alignment."""
        mapped = mmap.mmap(-1, nbytes + 2 * ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        address = start + (ALIGNMENT - start) % (2 * ALIGNMENT)
        self._maps[address] = mapped
        return address

    def _spoil(self, start: int, nbytes: int) -> None:
        """Put garbage where content is undefined; zeros where they are promised."""
        if self._maps:
            is_zero = Capability.ZERO_WHEN_NEW in self.capabilities
            ctypes.memset(start, 0 if is_zero else GARBAGE, nbytes)

    def _move(self, start: int, to: int, nbytes: int) -> None:
        if self._maps:
            ctypes.memmove(to, start, nbytes)


class FakeExport:
    """Exports a range by way of NumPy, whose capsules are native."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        import numpy as np  # it is loaded when it is needed

        held = (ctypes.c_ubyte * nbytes).from_address(address)
        held.owner = owner  # type: ignore[attr-defined]  # ctypes keeps attributes
        self._array = np.frombuffer(memoryview(held), np.uint8)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._array.__dlpack_device__()
        return int(kind), index

    def __dlpack__(self, *, stream: object = None, **options: object) -> object:
        """Return a capsule; work of fake streams takes no notice of it."""
        export: Callable[..., object] = self._array.__dlpack__
        return export(**options)


def _event(event: object) -> FakeEvent:
    if not isinstance(event, FakeEvent):
        raise MisuseError(f"{event!r} is no event of this device")
    return event


def _granules(address: int, nbytes: int) -> set[int]:
    first = address // GRANULARITY * GRANULARITY
    return set(range(first, address + nbytes, GRANULARITY))
