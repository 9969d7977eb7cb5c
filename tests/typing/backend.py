"""A plugin whose types are right: its backend is one of those that madl takes."""

from typing import assert_type

import madl
from madl.backends import hookimpl
from madl.backends.protocol import (
    Backend,
    Capability,
    CommitBackend,
    MemoryInfo,
    Reservation,
)
from madl.errors import NativeFailure, OutOfMemoryError, OutOfMemoryReport
from madl.testing import BackendConformance


class CountingBackend:
    """Offsets only: it takes nothing, and counts what it would take."""

    capabilities = Capability.COMMIT
    granularity = 4096
    alignment = 4096
    page_nbytes = 1 << 16

    def __init__(self, device: str) -> None:
        self.device = device
        self.committed_nbytes = 0

    def reserve(self, nbytes: int) -> Reservation:
        if nbytes > 1 << 40:
            native = NativeFailure("count", 12, "too many to count")
            report = OutOfMemoryReport(self.device, nbytes, native=native)
            raise OutOfMemoryError(report)
        return Reservation(native=object(), nbytes=nbytes, address=None)

    def release(self, reservation: Reservation) -> None:
        assert_type(reservation.address, int | None)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        self.committed_nbytes += nbytes

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        self.committed_nbytes -= nbytes

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(1 << 40, (1 << 40) - self.committed_nbytes)


@hookimpl
def madl_devices() -> list[str]:
    return ["counting:0"]


@hookimpl
def madl_open(device: str) -> Backend | None:
    return CountingBackend(device) if device == "counting:0" else None


class Proof(BackendConformance):
    """What an author of a backend writes to have it tested."""

    def make_backend(self) -> Backend:
        return CountingBackend("counting:0")


def main() -> None:
    """Allocate from it."""
    backend = CountingBackend("counting:0")
    commits: CommitBackend = backend
    with madl.Pool(commits) as pool, pool.allocate("1 MiB") as memory:
        assert_type(memory, madl.Memory)
        assert pool.stats().committed_nbytes == backend.committed_nbytes > 0


if __name__ == "__main__":
    main()
