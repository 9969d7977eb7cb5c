"""Host memory, device ``"cpu"``: reserved address space, committed page by page.

What differs between operating systems is in one module for each, picked from a
table; this class keeps the backend protocol and what is the same everywhere.
"""

import platform
import re
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from madl.backends.host import HostMemory, HostReservation
from madl.backends.kept import KeptReservations
from madl.backends.protocol import Capability, HugePages, MemoryInfo, Reservation
from madl.errors import BackendNotFoundError, OutOfMemoryError
from madl.sizes import align_up, format_nbytes, parse_nbytes

PAGE_NBYTES = 2 << 20
"""Of a pool on the host, by default."""

_SYSTEMS = {
    "android": ("madl.backends.host.android", "AndroidMemory"),
    "darwin": ("madl.backends.host.darwin", "DarwinMemory"),
    "dragonfly": ("madl.backends.host.bsd", "BsdMemory"),
    "freebsd": ("madl.backends.host.bsd", "BsdMemory"),
    "ios": ("madl.backends.host.darwin", "DarwinMemory"),
    "linux": ("madl.backends.host.linux", "LinuxMemory"),
    "netbsd": ("madl.backends.host.bsd", "BsdMemory"),
    "openbsd": ("madl.backends.host.bsd", "BsdMemory"),
    "win": ("madl.backends.host.windows", "WindowsMemory"),
}
_OTHERS = ("madl.backends.host.plain", "PlainMemory")
_NEEDED = ("mmap", "_ctypes")
"""Modules of Python that every system's memory is reached by; WASI has neither."""


class CpuBackend:
    """Memory of the host, committed and given back in any multiple of an OS page.

    On a system that madl has no calls for, a reservation is memory from the start.
    There is no COPY and no FILL: with HOST_ACCESS both are done at the address.
    A program that calls ``mlockall`` does so before it reserves: later, the call
    itself would make all of the address space resident that is reserved by then.

    Args:
        page_nbytes: The page size that a pool should use; 2 MiB by default.

    Raises:
        BackendNotFoundError: This Python cannot reach the host's memory.
        ValueError: ``page_nbytes`` is not a multiple of the OS page.
    """

    device = "cpu"

    def __init__(
        self,
        *,
        page_nbytes: int | None = None,
        _memory: HostMemory | None = None,
    ) -> None:
        self._memory = _memory or open_host_memory()
        self.granularity = _os_page_nbytes()
        self.page_nbytes = _check_page(
            PAGE_NBYTES if page_nbytes is None else page_nbytes
        )
        self.alignment = self._memory.alignment
        self._kept = KeptReservations[HostReservation](self.device)
        self.capabilities = (
            Capability.HOST_ACCESS
            | Capability.PREFAULT
            | Capability.ZERO_WHEN_NEW  # the system maps no page of another process
            | Capability.DESCRIBE
        )
        if not self._memory.commit_refusal:
            self.capabilities |= Capability.COMMIT | Capability.GUARD_PAGES
        if not self._memory.remap_refusal:
            self.capabilities |= Capability.REMAP
        if self._memory.huge_page_nbytes:
            self.capabilities |= Capability.HUGE_PAGES
        if not self._memory.numa_refusal:
            self.capabilities |= Capability.NUMA
        self._memory.choose_pages(self.page_nbytes, huge=None)

    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        """Say in which pages reservations from now on will be committed.

        Args:
            page_nbytes: Commits and decommits will be multiples of it.
            huge: Back them with huge OS pages, or do not; ``None`` for huge ones
                where ``page_nbytes`` is a multiple of them. ``"explicit"`` for those
                that an administrator has set aside, or allowed this user to have.

        Raises:
            MissingCapabilityError: Huge pages were asked for and cannot be had. What
                was chosen before stands.
        """
        self._memory.choose_pages(_check_page(page_nbytes), huge=huge)

    def choose_prefault(self, *, prefault: bool) -> None:
        """Say whether pages are faulted in when they are committed, from now on."""
        self._memory.choose_prefault(prefault=prefault)

    def choose_node(self, node: int | None) -> None:
        """Prefer memory of one NUMA node from now on.

        Raises:
            MissingCapabilityError: The system has no such node, or no choice of one.
        """
        self._memory.choose_node(node)

    def choose_guard_pages(self) -> None:
        """Let a touch of what is not committed end the program, from now on.

        Raises:
            MissingCapabilityError: The system makes all that is reserved usable.
        """
        self._memory.choose_guard_pages()

    def reserve(self, nbytes: int) -> Reservation:
        """Take ``nbytes`` bytes of address space."""
        return self._kept.keep(self._memory.reserve(nbytes), nbytes)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back to the system, committed or not."""
        self._kept.release(reservation)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Make ``[offset, offset + nbytes)`` usable."""
        self._kept.find(reservation).commit(offset, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Give the memory of ``[offset, offset + nbytes)`` back."""
        self._kept.find(reservation).decommit(offset, nbytes)

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Move the memory behind ``source`` to ``destination``, here or ``into``.

        Where the system refuses, the source is decommitted and the destination
        committed instead, so its content is undefined.
        """
        found = self._kept.find(reservation)
        target = found if into is None else self._kept.find(into)
        found.remap(source, destination, nbytes, target)

    def memory_info(self) -> MemoryInfo:
        """Return this machine's memory, or what the system leaves to the process."""
        return self._memory.memory_info()

    def describe(self) -> dict[str, str]:
        """Return what is in force on this machine, in words, for ``madl info``."""
        info = self.memory_info()
        total = format_nbytes(info.total_nbytes)
        try:
            self._memory.reserve(align_up(info.total_nbytes, self.alignment)).release()
        except OutOfMemoryError as error:
            reservable = f"refused: {error.report.native}"
            # describe() of the system tells of the last reservation that was made.
            with suppress(OutOfMemoryError):
                self._memory.reserve(self.alignment).release()
        else:
            reservable = "possible"
        return {
            "system": f"{platform.system()} {platform.release()}",
            f"reserving {total}": reservable,
            "OS page": format_nbytes(self.granularity),
            "page": format_nbytes(self.page_nbytes),
            **self._memory.describe(),
        }


def madl_devices() -> list[str]:
    """Return the host, if this Python can reach its memory."""
    _check_python()
    return [CpuBackend.device]


def madl_open(device: str) -> CpuBackend | None:
    """Return a backend of the host."""
    return CpuBackend() if device in ("cpu", "cpu:0") else None


def _check_page(page_nbytes: int) -> int:
    checked = parse_nbytes(page_nbytes, name="page_nbytes")
    os_page_nbytes = _os_page_nbytes()
    if checked == 0 or checked % os_page_nbytes:
        raise ValueError(
            f"page_nbytes must be a positive multiple of {os_page_nbytes}, "
            f"got {checked}"
        )
    return checked


def _os_page_nbytes() -> int:
    import mmap

    return mmap.PAGESIZE


def _check_python() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        reason = f"Python on {sys.platform} has no module {' and no '.join(missing)}"
        raise BackendNotFoundError(CpuBackend.device, (), reason)


def open_host_memory() -> HostMemory:
    """Return what this operating system's module offers."""
    _check_python()
    # Python before 3.13 calls Android "linux"; the BSDs' names end in a version.
    is_android = hasattr(sys, "getandroidapilevel")
    system = "android" if is_android else re.sub(r"\d+$", "", sys.platform)
    module, name = _SYSTEMS.get(system, _OTHERS)
    return cast("HostMemory", getattr(import_module(module), name)())
