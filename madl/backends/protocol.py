"""The backend protocol: seven mandatory names, and optional ones behind capabilities.

A backend speaks one device API for one device. All that it can do besides reserving
and releasing memory it declares as a ``Capability``, whose protocol class specifies
the methods. None is looked up by its name: without the capability it is never called.
Sizes and offsets are in bytes.
"""

import enum
import functools
from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple, Protocol, runtime_checkable


class Reservation(NamedTuple):
    """One contiguous piece of device memory, or of its address space.

    Attributes:
        native: What the device's own API calls it: an address, a ``cl_mem``.
        nbytes: Its length.
        address: ``None`` where the API has no addresses.
        base: Without an address: where it starts in the device's own memory, from which
            alignment counts. ``None`` where that is not known, and so no alignment
            beyond the backend's own can be asked for.
    """

    native: object
    nbytes: int
    address: int | None
    base: int | None = 0


class MemoryInfo(NamedTuple):
    """Memory of the whole device, in bytes, all processes together.

    Attributes:
        total_nbytes: Memory that there is.
        available_nbytes: Memory that is unused now.
    """

    total_nbytes: int
    available_nbytes: int


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
    PEER_COPY = enum.auto()
    """Copies from memory of other backends, in one call of the driver."""
    STAGED_COPY = enum.auto()
    """Large copies from and to pageable host memory go through pinned memory."""
    CAPTURE = enum.auto()
    """Work queued in a stream may be captured into a graph instead of being done."""
    HANDLE_PAGES = enum.auto()
    """Each page costs a handle of the driver, so that a few large ones are better."""
    GUARD_PAGES = enum.auto()
    """Can make what is not committed inaccessible, so that a touch ends the program."""
    SETTLE = enum.auto()
    """Decommits a range of which it is not known how much is committed."""
    ZERO_WHEN_NEW = enum.auto()
    """Addresses that were never written since they were reserved read as zero."""
    SIMULATED = enum.auto()
    """Stands for no real device, so that each object is one of its own."""
    DLPACK = enum.auto()
    """Other libraries take its memory in place, by DLPack."""
    CUDA_ARRAY = enum.auto()
    """Other libraries take its memory in place, by the CUDA array interface."""
    DESCRIBE = enum.auto()
    """Says in words what is in force on the device, for ``madl info``."""


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
    """A backend with ``Capability.HANDLE_PAGES``."""

    def page_nbytes_for(self, limit_nbytes: int) -> int:
        """Return the page size that suits a pool with a limit.

        A multiple of granularity, and no smaller for a larger limit.
        """

    def choose_pages(self, page_nbytes: int, *, huge: bool | None) -> None:
        """As ``HugePageBackend.choose_pages``."""


@runtime_checkable
class PrefaultBackend(Backend, Protocol):
    """A backend with ``Capability.PREFAULT``."""

    def choose_prefault(self, *, prefault: bool) -> None:
        """Say whether memory is faulted in when it is committed, or reserved.

        It is for reservations from now on. Where pages are chosen as well, that comes
        first.
        """


@runtime_checkable
class GuardPagesBackend(CommitBackend, Protocol):
    """A backend with ``Capability.GUARD_PAGES``, and so with HOST_ACCESS."""

    def choose_guard_pages(self) -> None:
        """Make what is not committed inaccessible, in reservations from now on.

        Raises:
            MissingCapabilityError: This system cannot do it.
        """


@runtime_checkable
class NumaBackend(Backend, Protocol):
    """A backend with ``Capability.NUMA``."""

    def choose_node(self, node: int | None) -> None:
        """Prefer memory of a node for reservations from now on; ``None`` for any.

        Raises:
            MissingCapabilityError: There is no such node, or it cannot be chosen.
        """


@runtime_checkable
class SettlingBackend(CommitBackend, Protocol):
    """A backend with ``Capability.SETTLE``: an interrupted call loses no memory.

    When a signal handler raises in the middle of a commit, a decommit or a remap, the
    caller cannot know whether that took effect. Without this capability all that a
    pool can do then is to decommit the range, and to ignore that it fails.
    """

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Decommit as much of a range as is committed: all, some or none of it.

        Args:
            reservation: Where it is.
            offset: Where the range starts.
            nbytes: Its bytes.
            committed_nbytes: What is committed of the reservation outside the range.
        """


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
class PeerCopyBackend(CopyBackend, Protocol):
    """A backend with ``Capability.PEER_COPY``: it copies from other backends."""

    def reaches(self, backend: Backend) -> bool:
        """Return whether ``copy_from_device`` takes memory of another backend."""

    def shares_streams(self, backend: Backend) -> bool:
        """Return whether a stream of this backend runs on another one too."""

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
        """Copy from a reservation of another backend, which this one reaches.

        The two ranges do not overlap. ``stream`` is of this backend; without one the
        copy is complete on return.
        """


class Staging(NamedTuple):
    """How a large copy is staged: piece by piece, through memory of another device.

    The CPU and the backend reach that memory; the backend copies one piece while the
    CPU copies another.

    Attributes:
        device: What the memory is taken from, by a pool: ``"cuda_pinned:0"``.
        stream: Where the backend's copies are queued, so that they return early.
        finish: Returns when all that is queued there is done.
    """

    device: str
    stream: object
    finish: Callable[[], object]


@runtime_checkable
class StagedCopyBackend(CopyBackend, Protocol):
    """A backend with ``Capability.STAGED_COPY``, and so with STREAM_ORDERED.

    A device copies by itself only from and to pinned memory; for other memory its
    driver stages the copy, which a pool of pinned memory does faster.
    """

    def staging(self, host: memoryview, stream: object) -> Staging | None:
        """Return how a copy between ``host`` and the device is to be staged.

        Args:
            host: One side of the copy, contiguous and not empty.
            stream: Where it was to be queued.

        Returns:
            ``None`` where it is best queued as it is, as between pinned memory and the
            device.
        """


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

        It is valid while the reservation is, and keeps no memory live.
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

        The device waits; the call does not block.
        """

    def synchronize(self, event: object) -> None:
        """Return when an event has been reached. The host waits."""


@runtime_checkable
class CaptureBackend(StreamOrderedBackend, Protocol):
    """A backend with ``Capability.CAPTURE``: streams may be captured into a graph."""

    def is_capturing(self, stream: object) -> bool:
        """Return whether work queued in a stream goes into a graph, for later."""


class DlpackExporter(Protocol):
    """What an importer of DLPack asks for, as the array API standard has it."""

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __dlpack__(self, **options: object) -> object: ...


@runtime_checkable
class DlpackBackend(Backend, Protocol):
    """A backend with ``Capability.DLPACK``; its reservations have addresses."""

    def buffer_over(self, address: int, nbytes: int, owner: object) -> DlpackExporter:
        """Return what exports a range by DLPack, in order with no stream.

        Its capsules are native: an exporter whose deleter is Python code would replace
        an exception that is in flight when the last importer ends.

        Args:
            address: Where the range starts.
            nbytes: Its bytes.
            owner: Kept alive by what is returned, and by each of its capsules.

        Raises:
            MissingCapabilityError: The library that makes capsules is not installed.
        """


@runtime_checkable
class CudaArrayBackend(StreamOrderedBackend, Protocol):
    """A backend with ``Capability.CUDA_ARRAY``: CUDA reaches its addresses."""

    def stream_handle(self, stream: object) -> int:
        """Return the handle that CUDA's array interface tells for a stream, never 0."""


@runtime_checkable
class DescribedBackend(Backend, Protocol):
    """A backend with ``Capability.DESCRIBE``."""

    def describe(self) -> dict[str, str]:
        """Return what is in force on the device, in words, for ``madl info``."""


PROTOCOLS: dict[Capability, type] = {
    Capability.COMMIT: CommitBackend,
    Capability.REMAP: RemapBackend,
    Capability.HUGE_PAGES: HugePageBackend,
    Capability.COPY: CopyBackend,
    Capability.FILL: FillBackend,
    Capability.VIEW: ViewBackend,
    Capability.STREAM_ORDERED: StreamOrderedBackend,
    Capability.SHARE: ShareBackend,
    Capability.PREFAULT: PrefaultBackend,
    Capability.NUMA: NumaBackend,
    Capability.PEER_COPY: PeerCopyBackend,
    Capability.STAGED_COPY: StagedCopyBackend,
    Capability.CAPTURE: CaptureBackend,
    Capability.HANDLE_PAGES: HandlePagesBackend,
    Capability.GUARD_PAGES: GuardPagesBackend,
    Capability.SETTLE: SettlingBackend,
    Capability.DLPACK: DlpackBackend,
    Capability.CUDA_ARRAY: CudaArrayBackend,
    Capability.DESCRIBE: DescribedBackend,
}
"""The capabilities that have methods, and the protocol of each."""


def missing_names(backend: object, protocol: type) -> list[str]:
    """Return what a protocol and its parents ask for, and a backend does not have."""
    return [name for name in _names_of(protocol) if not hasattr(backend, name)]


@functools.cache
def _names_of(protocol: type) -> tuple[str, ...]:
    parts = [part for part in protocol.__mro__ if part.__module__ == __name__]
    names = {name for part in parts for name in vars(part) if name[0] != "_"}
    return tuple(sorted(names))


class ArrayPlace(NamedTuple):
    """Where an array of another library lies in a device's memory."""

    backend: Backend
    """Copies it; what the array lies in was reserved by its library."""
    reservation: Reservation
    offset: int
    nbytes: int
    stream: object
    """What is queued there comes before a copy; ``None`` for the default one."""
    is_readonly: bool
