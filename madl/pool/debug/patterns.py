"""The bytes that debug mode writes around blocks and into them, and reads again.

Each backend is asked for what it can do: the CPU writes where it reaches the memory,
else the device fills, and its copies bring back what is looked at.
"""

import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import NamedTuple, cast

from madl.backends.counted import CountedBackend
from madl.backends.protocol import (
    Capability,
    CopyBackend,
    FillBackend,
    Reservation,
    StreamOrderedBackend,
)
from madl.errors import MissingCapabilityError
from madl.errors.damage import MOST_SHOWN

FRONT_NBYTES = 512
"""Before each block: what keeps the alignment that a pool promises."""

LEAST_BACK_NBYTES = 64
MOST_BACK_NBYTES = 1024
"""Behind each block: what is left of its capacity, within these bounds."""

GUARD = 0xFD
FRESH = 0xFF
"""Of memory that was not written yet: floats of every width read as NaN."""
FREED = 0xDD

ENDS_NBYTES = 64 << 10
"""Of a freed block on a device so much is looked at, from either end."""

_PIECE_NBYTES = 1 << 20

_COPIES = Capability.COPY | Capability.FILL


class Stretch(NamedTuple):
    """A range of a reservation, in bytes."""

    reservation: Reservation
    offset: int
    nbytes: int

    def cut(self, start: int, stop: int) -> "Stretch":
        """Return a part of it."""
        return Stretch(self.reservation, self.offset + start, stop - start)


class GuardBytes:
    """How guards are written and read; not at all on a device without content."""

    front_nbytes = 0
    is_immediate = True
    """Whether finalizers may look and fill: no call to the device, no order of work."""
    ends_nbytes = 0

    def fill(self, stretch: Stretch, value: int, stream: object) -> None:
        """Set every byte."""

    def read(self, stretch: Stretch, stream: object) -> bytes:
        """Return the content, after all that is queued on the stream."""
        return b""


class HostBytes(GuardBytes):
    """Memory that the CPU alone reads and writes."""

    front_nbytes = FRONT_NBYTES
    ends_nbytes = sys.maxsize

    def fill(self, stretch: Stretch, value: int, stream: object) -> None:
        """Set every byte, now."""
        ctypes.memset(_address(stretch), value, stretch.nbytes)

    def read(self, stretch: Stretch, stream: object) -> bytes:
        """Return the content, now."""
        return ctypes.string_at(_address(stretch), stretch.nbytes)


class DeviceBytes(GuardBytes):
    """Memory that a device fills and copies, in the order of a stream."""

    front_nbytes = FRONT_NBYTES
    is_immediate = False
    ends_nbytes = ENDS_NBYTES

    def __init__(self, backend: CountedBackend) -> None:
        self._copying = cast("CopyBackend", backend.backend)
        self._filling = cast("FillBackend", backend.backend)
        self._ordered = cast("StreamOrderedBackend", backend.backend)

    def fill(self, stretch: Stretch, value: int, stream: object) -> None:
        """Queue the fill; without a stream it is complete on return."""
        self._filling.fill(*stretch, value, stream=stream)

    def read(self, stretch: Stretch, stream: object) -> bytes:
        """Copy it to the host, and wait for that."""
        content = bytearray(stretch.nbytes)
        where = stretch.reservation, stretch.offset, memoryview(content)
        self._copying.copy_to_host(*where, stream=stream)
        if stream is not None:
            self._ordered.synchronize(self._ordered.record(stream))
        return bytes(content)


def guard_bytes_of(backend: CountedBackend, *, is_asked: bool) -> GuardBytes:
    """Return how guards are written on a device.

    Args:
        backend: Of the device.
        is_asked: Whether this pool was asked to have guards, not all of the process.

    Raises:
        MissingCapabilityError: It was, and the device cannot.
    """
    can = backend.capabilities
    lack = "content that guard bytes could protect"
    if Capability.SHARE in can:
        # Other processes may use a block for as long as they like, also after a free.
        lack = "memory of this process alone, which a free may overwrite"
    elif Capability.HOST_ACCESS in can and Capability.STREAM_ORDERED not in can:
        return HostBytes()
    elif can & _COPIES == _COPIES:
        return DeviceBytes(backend)
    if is_asked:
        raise MissingCapabilityError(backend.device, lack, "leave out debug=")
    return GuardBytes()


def written_in(
    access: GuardBytes, stretch: Stretch, value: int, stream: object
) -> tuple[int, int, bytes] | None:
    """Return the first bytes of a stretch that are not ``value``: start, stop, content.

    Of several places, those within one MiB are told as one, and the rest not at all.
    """
    for start, stop in _pieces(stretch.nbytes, access.ends_nbytes):
        content = access.read(stretch.cut(start, stop), stream)
        if content != _piece_of(value)[: len(content)]:
            byte = bytes((value,))
            first = len(content) - len(content.lstrip(byte))
            found = content[first:].rstrip(byte)
            first += start
            return first, first + len(found), found[:MOST_SHOWN]
    return None


def _pieces(nbytes: int, ends_nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover both ends, or all where they meet."""
    ends = [(0, nbytes)]
    if nbytes > 2 * ends_nbytes:
        ends = [(0, ends_nbytes), (nbytes - ends_nbytes, nbytes)]
    for first, last in ends:
        for start in range(first, last, _PIECE_NBYTES):
            yield start, min(start + _PIECE_NBYTES, last)


@functools.cache
def _piece_of(value: int) -> bytes:
    return bytes((value,)) * _PIECE_NBYTES


def _address(stretch: Stretch) -> int:
    assert stretch.reservation.address is not None, "HOST_ACCESS implies addresses"
    return stretch.reservation.address + stretch.offset
