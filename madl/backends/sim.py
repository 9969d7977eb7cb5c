"""A simulated device, ``"sim"``: offsets only, so any trace runs on any machine.

Nothing is backed by memory and nothing has an address. It stands for a device with
address space to reserve, or, without ``commits``, for one that hands out whole buffers.
"""

from madl.backends.kept import foreign
from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import (
    BackendCallError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)

DEFAULT_TOTAL_NBYTES = 1 << 40

ADDRESSES_NBYTES = 1 << 47
"""No reservation is larger: what a process has on most machines."""


class SimBackend:
    """Memory that is only counted.

    Args:
        total_nbytes: What the device has; a commit beyond it is refused.
        commits: Whether address space is reserved first and committed on demand.
    """

    def __init__(
        self, *, total_nbytes: int = DEFAULT_TOTAL_NBYTES, commits: bool = True
    ) -> None:
        self.device = "sim"
        self.capabilities = Capability.SIMULATED
        if commits:
            self.capabilities |= (
                Capability.COMMIT | Capability.REMAP | Capability.SETTLE
            )
        self.granularity = 4096
        self.alignment = 2 << 20
        self.page_nbytes = 2 << 20
        self.total_nbytes = total_nbytes
        self.committed_nbytes = 0
        self._committed: dict[int, int] = {}
        self._next_native = 0

    def reserve(self, nbytes: int) -> Reservation:
        """Take offsets; without ``commits`` they are committed as well."""
        commits = Capability.COMMIT in self.capabilities
        if nbytes <= 0 or nbytes % self.granularity:
            raise self._misuse("reserve", nbytes)
        if nbytes > ADDRESSES_NBYTES:
            raise self._refusal(
                "reserve", nbytes, f"there are {ADDRESSES_NBYTES} addresses"
            )
        if not commits:
            self._take(nbytes)
        self._next_native += 1
        self._committed[self._next_native] = 0 if commits else nbytes
        return Reservation(self._next_native, nbytes, None)

    def release(self, reservation: Reservation) -> None:
        """Give the offsets back, and what is committed of them."""
        del self._committed[self._known(reservation)]
        self.committed_nbytes = sum(self._committed.values())

    def memory_info(self) -> MemoryInfo:
        """Return what the device was made with."""
        return MemoryInfo(self.total_nbytes, self.total_nbytes - self.committed_nbytes)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Count a range as taken."""
        self._inside(reservation, offset, nbytes, "commit")
        self._take(nbytes)
        self._committed[self._known(reservation)] += nbytes

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Count a range as given back."""
        self._inside(reservation, offset, nbytes, "decommit")
        if self._committed[self._known(reservation)] < nbytes:
            raise self._misuse("decommit", nbytes)
        self._committed[self._known(reservation)] -= nbytes
        self.committed_nbytes -= nbytes

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Count nothing of a range any more: what is left is committed elsewhere."""
        self._inside(reservation, offset, nbytes, "settle")
        self._committed[self._known(reservation)] = committed_nbytes
        self.committed_nbytes = sum(self._committed.values())

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Count a range as taken elsewhere; what moves stays committed."""
        target = reservation if into is None else into
        self._inside(reservation, source, nbytes, "remap")
        self._inside(target, destination, nbytes, "remap")
        if self._committed[self._known(reservation)] < nbytes:
            raise self._misuse("remap", nbytes)
        self._committed[self._known(reservation)] -= nbytes
        self._committed[self._known(target)] += nbytes

    def _take(self, nbytes: int) -> None:
        if self.committed_nbytes + nbytes > self.total_nbytes:
            text = f"the device has {self.total_nbytes} bytes"
            raise self._refusal("commit", nbytes, text)
        self.committed_nbytes += nbytes

    def _known(self, reservation: Reservation) -> int:
        native = reservation.native
        if not isinstance(native, int) or native not in self._committed:
            raise foreign(self.device, reservation)
        return native

    def _inside(
        self, reservation: Reservation, offset: int, nbytes: int, what: str
    ) -> None:
        self._known(reservation)
        aligned = offset % self.granularity == 0 == nbytes % self.granularity
        if not aligned or offset < 0 or not 0 < nbytes <= reservation.nbytes - offset:
            raise self._misuse(what, nbytes)

    def _refusal(self, what: str, nbytes: int, text: str) -> OutOfMemoryError:
        native = NativeFailure(f"sim_{what}", 12, text)
        return OutOfMemoryError(OutOfMemoryReport(self.device, nbytes, native=native))

    def _misuse(self, what: str, nbytes: int) -> BackendCallError:
        return BackendCallError(
            self.device, what, NativeFailure(f"sim_{what}", 22, f"{nbytes} bytes")
        )


def madl_devices() -> list[str]:
    """Return the simulation."""
    return ["sim"]


def madl_open(device: str) -> SimBackend | None:
    """Return a simulation of its own for each call."""
    return SimBackend() if device in ("sim", "sim:0") else None
