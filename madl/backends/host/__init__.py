"""Host memory: one module for each operating system, through its raw calls.

These are the base classes of what such a module offers. Each call means what the
backend protocol says of it, with offsets in bytes, and raises madl's errors.
"""

from abc import abstractmethod

from madl.backends.protocol import HugePages, MemoryInfo
from madl.errors import (
    BackendCallError,
    MadlError,
    MissingCapabilityError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.sizes import format_nbytes

DEVICE = "cpu"


def error_of(
    native: NativeFailure,
    verb: str,
    nbytes: int,
    *,
    is_refusal: bool,
    device: str = DEVICE,
) -> MadlError:
    """Return the error for a call that failed, for lack of memory or otherwise."""
    if is_refusal:
        report = OutOfMemoryReport(device, nbytes, nbytes, native=native)
        return OutOfMemoryError(report)
    return BackendCallError(device, f"{verb} {format_nbytes(nbytes)}", native)


def cannot_choose(
    option: str, missing: str, instead: str = ""
) -> MissingCapabilityError:
    """Return the error for an option of a pool that this system cannot do."""
    return MissingCapabilityError(DEVICE, missing, f"{instead}leave out {option}=")


class HostReservation:
    """A range of addresses, as its operating system's module keeps it."""

    address: int
    nbytes: int

    @abstractmethod
    def commit(self, offset: int, nbytes: int) -> None:
        """As ``CommitBackend.commit``."""

    @abstractmethod
    def decommit(self, offset: int, nbytes: int) -> None:
        """As ``CommitBackend.decommit``."""

    def remap(
        self,
        source: int,
        destination: int,
        nbytes: int,
        into: "HostReservation | None" = None,
    ) -> None:
        """Let the source go and commit the destination, or change nothing."""
        self.decommit(source, nbytes)
        try:
            (self if into is None else into).commit(destination, nbytes)
        except BaseException:
            self.commit(source, nbytes)
            raise

    @abstractmethod
    def release(self) -> None:
        """As ``Backend.release``."""


class HostMemory:
    """How a system lets this process have memory; by default, without choices."""

    alignment: int
    commit_refusal = ""
    """Why reservations are memory from the start; empty when they are committed."""

    remap_refusal: str
    """Why memory cannot be remapped; empty when it can."""

    huge_page_nbytes = 0
    """0 where the system has no huge pages, and so nothing to choose."""

    huge_pages = "huge pages on this system"
    """What is missing where they are asked for."""

    numa_refusal: str
    """Why memory of one NUMA node cannot be asked for; empty when it can."""

    node: int | None = None
    """The node that is preferred from now on."""

    is_prefaulting = False
    """Whether what is committed from now on is touched by that."""

    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        """As ``HugePageBackend.choose_pages``."""
        if huge:
            raise cannot_choose("huge_pages", self.huge_pages)

    def choose_prefault(self, *, prefault: bool) -> None:
        """As ``PrefaultBackend.choose_prefault``."""
        self.is_prefaulting = prefault

    def choose_node(self, node: int | None) -> None:
        """As ``NumaBackend.choose_node``."""
        if node is not None and self.numa_refusal:
            raise cannot_choose("numa_node", f"NUMA nodes ({self.numa_refusal})")

    def choose_guard_pages(self) -> None:
        """As ``GuardPagesBackend.choose_guard_pages``."""

    @abstractmethod
    def reserve(self, nbytes: int) -> HostReservation:
        """As ``Backend.reserve``."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """As ``Backend.memory_info``."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what was chosen for this system, and why."""

    def _describe_node(self) -> str:
        if self.node is not None:
            return f"node {self.node} preferred"
        return self.numa_refusal or "not asked for"
