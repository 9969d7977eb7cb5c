"""Shared memory, device ``"shared"``: host memory that other processes can attach.

Each reservation is an object of the operating system. A receiver sees all of it and
may keep it for ever, so it holds one block and is never reused; and it is not
committed in part.
"""

import sys
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from madl.backends.cpu import open_host_memory
from madl.backends.host import HostMemory
from madl.backends.kept import KeptReservations
from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import (
    AttachError,
    BackendNotFoundError,
    OutOfMemoryError,
    OutOfMemoryReport,
)

_MODULE = "shared_windows" if sys.platform == "win32" else "shared_posix"


class Segment(Protocol):
    """Memory of one reservation, mapped here."""

    address: int
    descriptor: object
    """What owns it, here and in a process that it is sent to."""
    start: int
    """Where it begins in what the descriptor keeps."""

    def release(self) -> None:
        """Unmap it."""


class SharedPart(NamedTuple):
    """What stands for a reservation in other processes."""

    descriptor: object
    """Of a segment; where it did not arrive, a text that says why."""
    start: int


class SharedBackend:
    """Memory that other processes can attach.

    Like all host memory it is taken from the machine when it is first touched.
    """

    device = "shared"
    capabilities = (
        Capability.HOST_ACCESS
        | Capability.SHARE
        | Capability.ZERO_WHEN_NEW
        | Capability.DESCRIBE
    )

    def __init__(self) -> None:
        # Any: which system's, mypy cannot know.
        self._system: Any = import_module(f"madl.backends.host.{_MODULE}")
        self.granularity: int = self._system.GRANULARITY
        self.alignment = self.granularity
        self._kept = KeptReservations[Segment](self.device)

    @cached_property
    def _host(self) -> HostMemory:
        # On first use: opening it probes the system, which attaching does not need.
        return open_host_memory()

    @cached_property
    def _most_nbytes(self) -> int:
        return self.memory_info().total_nbytes

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory; more than the machine has is refused."""
        if nbytes > self._most_nbytes:  # granted, it would fail when touched
            raise OutOfMemoryError(OutOfMemoryReport(self.device, nbytes, nbytes))
        return self._kept.keep(self._system.make(nbytes), nbytes)

    def release(self, reservation: Reservation) -> None:
        """Unmap a reservation."""
        self._kept.release(reservation)

    def memory_info(self) -> MemoryInfo:
        """Return this machine's memory, or what the system leaves to the process."""
        return self._host.memory_info()

    def share(self, reservation: Reservation) -> object:
        """Return what ``multiprocessing`` can send; it keeps the memory by itself."""
        segment = self._kept.find(reservation)
        return SharedPart(segment.descriptor, segment.start)

    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        """Map what another process, or this one, has shared."""
        descriptor, start = cast("SharedPart", shared)
        if isinstance(descriptor, str):
            raise AttachError(self.device, nbytes, descriptor)
        segment = self._system.attach(descriptor, start + offset, nbytes)
        return self._kept.keep(segment, nbytes)

    def describe(self) -> dict[str, str]:
        """Return what is in force on this machine, in words, for ``madl info``."""
        described: dict[str, str] = self._system.describe()
        return described


def madl_devices() -> list[str]:
    """Return the device, where the system has such memory."""
    return [] if _refusal() else [SharedBackend.device]


def madl_open(device: str) -> SharedBackend | None:
    """Return a backend of shared memory."""
    if device not in ("shared", "shared:0"):
        return None
    if refusal := _refusal():
        raise BackendNotFoundError(device, (), refusal)
    return SharedBackend()


def _refusal() -> str:
    try:
        system = import_module(f"madl.backends.host.{_MODULE}")
        system.make(system.GRANULARITY).release()
    except ImportError as error:
        return f"this system has no memory that processes share: {error}"
    except Exception as error:  # a sandbox may refuse any of the calls, in any way
        return str(error)
    return ""
