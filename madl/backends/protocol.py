"""What a backend must offer, and what it may offer besides.

A backend speaks one device API for one device. The mandatory part is seven names;
each optional part is a small protocol of its own that a declared capability switches
on. Sizes and offsets are in bytes.
"""

import enum
from collections.abc import Hashable
from typing import Literal, Protocol, runtime_checkable

from madl.backends.reservation import MemoryInfo as MemoryInfo
from madl.backends.reservation import Reservation as Reservation


class Capability(enum.Flag):
    """What a backend can do beyond reserving and releasing memory."""

    NONE = 0
    COMMIT = enum.auto()
    """Reserves address space first and backs it with memory on demand."""
    REMAP = enum.auto()
    """Moves committed memory to another place in the address space, without a copy."""
    HUGE_PAGES = enum.auto()
    """Can back its pages with larger OS pages, or be told not to."""
    HOST_ACCESS = enum.auto()
    """The CPU can read and write the memory at its address."""
    COPY = enum.auto()
    """Copies from and to host memory and inside the device."""
    FILL = enum.auto()
    """Sets bytes on the device."""
    VIEW = enum.auto()
    """Makes a native object for a part of a reservation, as a ``cl_mem`` sub-buffer."""
    STREAM_ORDERED = enum.auto()
    """Records, queries and waits for positions of a stream."""
    PINNED = enum.auto()
    """Its host memory is locked in place for direct device access."""
    MANAGED = enum.auto()
    """One address for host and device, moved on demand."""
    SHARE = enum.auto()
    """Another process can attach the memory."""
    PREFAULT = enum.auto()
    """Can fault in what it commits, instead of waiting for the first touch."""
    NUMA = enum.auto()
    """Can be asked for memory of one NUMA node."""


HugePages = Literal["explicit"] | bool | None
"""Huge OS pages of the system's own making, or not; ``None`` for what suits the page
size. Those that are explicit come from a stock that an administrator has set aside."""


@runtime_checkable
class Backend(Protocol):
    """Memory of one device, in large pieces.

    A pool calls with a lock held; only what a finalizer or signal handler allocates in
    the middle of a call is reserved and committed beside that. None calls back into
    madl. A failed call raises and changes nothing. ``madl.testing`` has the tests.
    """

    @property
    def device(self) -> str:
        """Its name, as in ``"cuda:0"``."""

    @property
    def capabilities(self) -> Capability:
        """What it can do; constant for the life of the object."""

    @property
    def granularity(self) -> int:
        """Every size and offset passed in or handed out is a multiple of it."""

    @property
    def alignment(self) -> int:
        """The start of every reservation is a multiple of it, a power of two."""

    def reserve(self, nbytes: int) -> Reservation:
        """Take ``nbytes`` bytes from the device; with COMMIT, addresses only.

        Raises:
            OutOfMemoryError: The device refused. Nothing has been taken.
            BackendCallError: Any other failure. Nothing has been taken.
        """

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back to the device, exactly once, committed or not.

        Queued work may still use it: a stream-ordered device keeps the memory until
        that is done, or this call waits.
        """

    def memory_info(self) -> MemoryInfo:
        """Return how much memory the device has, and how much is unused now."""


@runtime_checkable
class CommitBackend(Backend, Protocol):
    """A backend with ``Capability.COMMIT``."""

    @property
    def page_nbytes(self) -> int:
        """The page size that suits the device best, a multiple of granularity."""

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Make ``[offset, offset + nbytes)`` usable. Its content is undefined.

        No part of the range is committed when this is called.

        Raises:
            OutOfMemoryError: The device refused. The range is as before.
        """

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Give the range's memory back, keeping its addresses reserved.

        All of the range is committed when this is called.
        """


@runtime_checkable
class RemapBackend(CommitBackend, Protocol):
    """A backend with ``Capability.REMAP``: recycling costs it no new memory."""

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Move the memory behind ``[source, source + nbytes)`` to ``destination``.

        Afterwards the destination is committed and the source is not. The two do
        not overlap; all of the source is committed and nothing of the destination,
        an offset in ``into``, which is ``None`` for the same reservation.

        Raises:
            OutOfMemoryError: The device refused. Both ranges are as before.
        """


@runtime_checkable
class HugePageBackend(CommitBackend, Protocol):
    """A backend with ``Capability.HUGE_PAGES``."""

    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        """Say in which pages reservations from now on will be committed.

        Commits and decommits will be multiples of ``page_nbytes``.

        Raises:
            MissingCapabilityError: Huge pages were asked for and cannot be had.
        """


@runtime_checkable
class HandlePagesBackend(CommitBackend, Protocol):
    """A backend each of whose pages costs a handle, so that few are better."""

    def page_nbytes_for(self, limit_nbytes: int) -> int:
        """Return the page size that suits a pool with a limit."""

    def choose_pages(self, page_nbytes: int, *, huge: bool | None) -> None:
        """As ``HugePageBackend.choose_pages``."""


@runtime_checkable
class CopyBackend(Backend, Protocol):
    """A backend with ``Capability.COPY``.

    Without a stream a copy is complete on return. With one it is queued there, and
    the caller keeps host memory unchanged until that work is done.
    """

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy all of ``source``, contiguous bytes, to ``offset``."""

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy from ``offset`` into all of ``destination``, contiguous bytes."""

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
        """Copy inside the device; the two ranges do not overlap."""


@runtime_checkable
class FillBackend(Backend, Protocol):
    """A backend with ``Capability.FILL``."""

    def fill(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
        *,
        stream: object = None,
    ) -> None:
        """Set every byte of a range to ``value``, 0 to 255; complete as for a copy."""


@runtime_checkable
class ViewBackend(Backend, Protocol):
    """A backend with ``Capability.VIEW``."""

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return the device API's own object for a part of a reservation.

        It is valid while the reservation is; whoever holds it keeps no memory.
        """


@runtime_checkable
class ShareBackend(Backend, Protocol):
    """A backend with ``Capability.SHARE``: other processes can attach a reservation.

    They see all of it, for as long as they like: a pool places one block in each.
    """

    def share(self, reservation: Reservation) -> object:
        """Return what ``multiprocessing`` can send; it keeps the memory by itself."""

    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        """Return a reservation of what was sent. Others keep it when it is released.

        Raises:
            AttachError: It has not arrived, or is smaller.
        """


@runtime_checkable
class StreamOrderedBackend(Backend, Protocol):
    """A backend with ``Capability.STREAM_ORDERED``: work is queued, and done later.

    ``None`` stands for the stream in which the device does what is given no stream.
    An *event* is a position in a stream, reached when all work queued before it is
    done. Its type is the backend's own; it is dropped, never closed.
    """

    def stream_key(self, stream: object) -> Hashable:
        """Return what is equal for two objects that mean one stream of this device.

        Raises:
            TypeError: ``stream`` is no stream that this backend knows.
            ValueError: It belongs to another device.
        """

    def record(self, stream: object) -> object:
        """Return an event at the end of what is queued on a stream now."""

    def is_done(self, event: object) -> bool:
        """Return whether an event has been reached, without waiting."""

    def wait(self, stream: object, event: object) -> None:
        """Let what is queued on ``stream`` from now on wait for an event.

        The device waits; the call returns at once.
        """

    def synchronize(self, event: object) -> None:
        """Return when an event has been reached. The host waits."""
