"""A backend that counts the calls it passes on."""

from typing import cast

from madl.backends.protocol import (
    Backend,
    Capability,
    CommitBackend,
    MemoryInfo,
    RemapBackend,
    Reservation,
)
from madl.errors import MissingCapabilityError


class CountedBackend:
    """Passes every call on and counts it, refused ones too."""

    def __init__(self, backend: Backend) -> None:
        self.inner = backend
        self.device = backend.device
        self.capabilities = backend.capabilities
        self.granularity = backend.granularity
        self.alignment = backend.alignment
        # What a backend claims, it has; isinstance would look at a protocol's members
        # one by one, and import for it.
        can = backend.capabilities
        self._committing = (
            cast("CommitBackend", backend) if Capability.COMMIT in can else None
        )
        self._remapping = (
            cast("RemapBackend", backend) if Capability.REMAP in can else None
        )
        self.calls = 0

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory, or addresses, from the device."""
        self.calls += 1
        return self.inner.reserve(nbytes)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back."""
        self.calls += 1
        self.inner.release(reservation)

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory; a question, so not counted."""
        return self.inner.memory_info()

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Back a range with memory."""
        self.calls += 1
        if self._committing is None:
            raise self._lies("COMMIT")
        self._committing.commit(reservation, offset, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Take a range's memory away."""
        self.calls += 1
        if self._committing is None:
            raise self._lies("COMMIT")
        self._committing.decommit(reservation, offset, nbytes)

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Move the memory behind a range to another place."""
        self.calls += 1
        if self._remapping is None:
            raise self._lies("REMAP")
        self._remapping.remap(reservation, source, destination, nbytes, into=into)

    def _lies(self, capability: str) -> MissingCapabilityError:
        return MissingCapabilityError(
            self.device, capability, "a backend that declares what it implements"
        )
