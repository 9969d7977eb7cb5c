"""Content of a fake device: bytes, copies, and streams that run when waited for."""

import ctypes
import mmap
import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import NamedTuple

from madl.backends.protocol import Backend, Capability, Reservation, Staging
from madl.hotpath.reentrancy import living

GARBAGE = 0xA5


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


class FakeBytes:
    """What a fake device can do with content. Its accounting is in the subclass."""

    device: str
    capabilities: Capability

    def __init__(self) -> None:
        # Its work runs when it is queued, after what it has to wait for.
        self.default_stream = FakeStream(self)
        self._streams: weakref.WeakSet[FakeStream] = weakref.WeakSet()
        self._addresses: dict[object, int] = {}
        self._maps: dict[int, mmap.mmap] = {}

    def make_stream(self) -> FakeStream:
        """Return a stream of this device."""
        stream = FakeStream(self)
        self._streams.add(stream)
        return stream

    def finish(self) -> None:
        """Do all work of all streams."""
        for stream in [self.default_stream, *living(self._streams)]:
            stream.pump()

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy to the device; on a stream, what ``source`` holds by then."""
        self._usable(Capability.COPY, reservation, offset, source.nbytes)

        def work() -> None:
            start = self._usable(Capability.COPY, reservation, offset, source.nbytes)
            data = source.tobytes()
            ctypes.memmove(start, data, len(data))

        self._do("copy_from_host", source.nbytes, stream, work)

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
        self._usable(Capability.COPY, reservation, offset, nbytes)

        def work() -> None:
            start = self._usable(Capability.COPY, reservation, offset, nbytes)
            destination.cast("B")[:] = ctypes.string_at(start, nbytes)

        self._do("copy_to_host", nbytes, stream, work)

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

        def places() -> tuple[int, int]:
            start = self._usable(Capability.COPY, source, source_offset, nbytes)
            to = self._usable(Capability.COPY, destination, destination_offset, nbytes)
            return start, to

        start, to = places()
        if start < to + nbytes and to < start + nbytes:
            raise MisuseError(f"copy of {nbytes} inside the device overlaps itself")
        self._do("copy_inside", nbytes, stream, lambda: self._move(*places(), nbytes))

    def reaches(self, backend: Backend) -> bool:
        """Return whether another backend is a fake one with bytes."""
        return isinstance(backend, FakeBytes)

    def shares_streams(self, backend: Backend) -> bool:
        """Return whether another backend is this one."""
        return isinstance(backend, FakeBytes) and backend is self

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
        if not isinstance(backend, FakeBytes):
            raise MisuseError(f"copy from {backend!r}, which is not reached")
        there = backend

        def places() -> tuple[int, int]:
            needed = Capability.PEER_COPY
            start = there._usable(Capability.COPY, source, source_offset, nbytes)
            to = self._usable(needed, destination, destination_offset, nbytes)
            return start, to

        places()
        there.default_stream.pump()
        self._do(
            "copy_from_device", nbytes, stream, lambda: self._move(*places(), nbytes)
        )

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
        self._usable(Capability.FILL, reservation, offset, nbytes)

        def work() -> None:
            start = self._usable(Capability.FILL, reservation, offset, nbytes)
            ctypes.memset(start, value, nbytes)

        self._do("fill", nbytes, stream, work)

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

    @abstractmethod
    def _usable(
        self, needed: Capability, reservation: Reservation, offset: int, nbytes: int
    ) -> int:
        """Return the address of a range, all of which is committed."""

    @abstractmethod
    def _call(self, name: str, nbytes: int) -> AbstractContextManager[None]:
        """Note a call and let it take effect, or fail."""

    def _is_host_accessible(self) -> bool:
        return Capability.HOST_ACCESS in self.capabilities

    def _do(
        self, name: str, nbytes: int, stream: object, work: Callable[[], None]
    ) -> None:
        with self._call(name, nbytes):
            if stream is None:
                self.default_stream.pump()
                work()
            else:
                self._stream(stream).queue(work)

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

    def _map(self, nbytes: int, alignment: int) -> int:
        """Take memory that starts at an odd multiple of the alignment."""
        mapped = mmap.mmap(-1, nbytes + 2 * alignment)
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        address = start + (alignment - start) % (2 * alignment)
        self._maps[address] = mapped
        return address

    def _unmap(self, address: int) -> None:
        self._maps.pop(address, None)

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
