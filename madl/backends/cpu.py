"""The host's own memory, device ``"cpu"``.

What differs between operating systems is in one module for each, picked from a
table; this class keeps the backend protocol and what is the same everywhere.
"""

import mmap
import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import BackendNotFoundError, OutOfMemoryError
from madl.sizes import align_up, format_nbytes, parse_nbytes

PAGE_NBYTES = 2 << 20
"""Of a pool on the host, by default."""

_SYSTEMS = {"linux": ("madl.backends._linux", "LinuxMemory")}
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_SETTINGS = {
    "overcommit_memory": Path("/proc/sys/vm/overcommit_memory"),
    "max_map_count": Path("/proc/sys/vm/max_map_count"),
    "transparent_hugepage": Path("/sys/kernel/mm/transparent_hugepage/enabled"),
}
_LIMITS = {"Max address space": "RLIMIT_AS", "Max data size": "RLIMIT_DATA"}
# By cgroup version: its folder, then the names of limit, use and droppable cache.
_CGROUP_NAMES = {
    1: (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
    2: ("", "memory.max", "memory.current", "inactive_file"),
}


class HostReservation(Protocol):
    """A reservation as its operating system's module keeps it; offsets in bytes."""

    address: int

    def commit(self, offset: int, nbytes: int) -> None:
        """As ``CommitBackend.commit``."""

    def decommit(self, offset: int, nbytes: int) -> None:
        """As ``CommitBackend.decommit``."""

    def remap(self, source: int, destination: int, nbytes: int) -> None:
        """As ``RemapBackend.remap``."""

    def release(self) -> None:
        """As ``Backend.release``."""


class HostMemory(Protocol):
    """What each operating system's module offers; it raises madl's errors."""

    alignment: int
    remap_refusal: str
    """Why memory cannot move inside a reservation; empty when it can."""

    def reserve(self, nbytes: int) -> HostReservation:
        """As ``Backend.reserve``."""

    def describe(self) -> dict[str, str]:
        """Return what was chosen for this system, and why."""


class CpuBackend:
    """Memory of the host, committed and given back in any multiple of an OS page.

    There is no COPY and no FILL: whoever has HOST_ACCESS does both at the address.

    Args:
        page_nbytes: The page size that a pool should use; 2 MiB by default.
        huge_pages: Let the kernel use huge pages where ``page_nbytes`` is a multiple
            of them.

    Raises:
        ValueError: ``page_nbytes`` is not a multiple of the OS page.
        BackendNotFoundError: madl has no calls for this operating system.
    """

    device = "cpu"
    granularity = mmap.PAGESIZE

    def __init__(
        self,
        *,
        page_nbytes: int | None = None,
        huge_pages: bool = True,
        _memory: HostMemory | None = None,
    ) -> None:
        self.page_nbytes = _check_page(
            PAGE_NBYTES if page_nbytes is None else page_nbytes
        )
        self._memory = _memory or _open_memory(self.page_nbytes, huge_pages)
        self.alignment = self._memory.alignment
        self._reservations: dict[int, HostReservation] = {}
        self.capabilities = Capability.COMMIT | Capability.HOST_ACCESS
        if not self._memory.remap_refusal:
            self.capabilities |= Capability.REMAP

    def reserve(self, nbytes: int) -> Reservation:
        """Take ``nbytes`` bytes of address space."""
        reservation = self._memory.reserve(nbytes)
        self._reservations[reservation.address] = reservation
        return Reservation(reservation.address, nbytes, reservation.address)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back to the system, committed or not."""
        self._find(reservation).release()
        del self._reservations[cast("int", reservation.address)]

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Make ``[offset, offset + nbytes)`` usable."""
        self._find(reservation).commit(offset, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Give the memory of ``[offset, offset + nbytes)`` back."""
        self._find(reservation).decommit(offset, nbytes)

    def remap(
        self, reservation: Reservation, source: int, destination: int, nbytes: int
    ) -> None:
        """Move the memory behind ``source`` to ``destination``.

        Where the system will not move it, the source is given back and the
        destination committed instead; the content is lost then.
        """
        self._find(reservation).remap(source, destination, nbytes)

    def memory_info(self) -> MemoryInfo:
        """Return this machine's memory, or what its cgroups leave to the process."""
        known = {}
        for line in _read(_PROC / "meminfo").splitlines():
            name, _, amount = line.partition(":")
            known[name] = int(amount.split()[0]) * 1024
        total = known["MemTotal"]
        available = known.get("MemAvailable", known["MemFree"])  # from Linux 3.14
        for limit, used in _cgroup_limits():
            total = min(total, limit)
            available = min(available, max(limit - used, 0))
        return MemoryInfo(total, available)

    def describe(self) -> dict[str, str]:
        """Return what is in force on this machine, in words, for ``madl info``."""
        info = self.memory_info()
        total = format_nbytes(info.total_nbytes)
        try:
            self._memory.reserve(align_up(info.total_nbytes, self.alignment)).release()
        except OutOfMemoryError as error:
            reservable = f"refused: {error.report.native}"
        else:
            reservable = "possible"
        return {
            "system": f"{platform.system()} {platform.release()}",
            "memory": f"{total}, {format_nbytes(info.available_nbytes)} available",
            f"reserving {total}": reservable,
            "OS page": format_nbytes(self.granularity),
            "page": format_nbytes(self.page_nbytes),
            **self._memory.describe(),
            **_system_settings(),
        }

    def _find(self, reservation: Reservation) -> HostReservation:
        found = self._reservations.get(cast("int", reservation.address))
        if found is None:
            raise ValueError(
                f"reservation must be one of this backend ({self.device}) that was "
                f"not released yet, got {reservation!r}"
            )
        return found


def _check_page(page_nbytes: int) -> int:
    checked = parse_nbytes(page_nbytes, name="page_nbytes")
    if checked == 0 or checked % mmap.PAGESIZE:
        raise ValueError(
            f"page_nbytes must be a positive multiple of {mmap.PAGESIZE}, got {checked}"
        )
    return checked


def _open_memory(page_nbytes: int, huge_pages: bool) -> HostMemory:
    # Python before 3.13 calls Android "linux".
    system = "android" if hasattr(sys, "getandroidapilevel") else sys.platform
    if system not in _SYSTEMS:
        known = ", ".join(sorted(_SYSTEMS))
        reason = f"there are host memory calls for {known}, not for {system}"
        raise BackendNotFoundError("cpu", ("cpu",), reason)
    module, name = _SYSTEMS[system]
    opened = getattr(import_module(module), name)
    return cast("HostMemory", opened(page_nbytes=page_nbytes, huge_pages=huge_pages))


def _system_settings() -> dict[str, str]:
    """Return the settings that decide what can be reserved; only those that exist."""
    settings = {name: _read(path) for name, path in _SETTINGS.items()}
    for line in _read(_PROC / "self" / "limits").splitlines():
        name, soft = line[:26].strip(), line[26:47].strip()
        if name in _LIMITS:
            settings[_LIMITS[name]] = soft
    return {name: value for name, value in settings.items() if value}


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each cgroup around the process with a limit."""
    for line in _read(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, limit_name, use_name, cache_name = _CGROUP_NAMES[
            1 if controllers else 2
        ]
        root = _CGROUP / folder
        for group in (leaf := root / path.lstrip("/"), *leaf.parents):
            limit = _read(group / limit_name)
            if limit.isdigit():
                lines = _read(group / "memory.stat").splitlines()
                cache = dict(line.split() for line in lines).get(cache_name, "0")
                # The kernel drops file cache before it refuses a process anything.
                yield int(limit), int(_read(group / use_name) or 0) - int(cache)
            if group == root:
                break


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
