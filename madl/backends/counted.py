"""A backend that counts the calls it passes on."""

from collections.abc import Hashable
from contextlib import suppress
from typing import Any, cast

from madl.backends.protocol import (
    Backend,
    Capability,
    CommitBackend,
    MemoryInfo,
    RemapBackend,
    Reservation,
    ViewBackend,
)
from madl.errors import MadlError, MissingCapabilityError


class CountedBackend:
    """Passes every call on; counts those that manage memory, refused ones too.

    Copies, fills and views are the user's own work, and neither a question nor an
    event changes what is committed: they are not counted.
    """

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
        self._viewing = cast("ViewBackend", backend) if Capability.VIEW in can else None
        self.calls = 0
        # By call: another one may come in the middle of it, or from another thread.
        self._unclaimed: dict[int, list[Reservation]] = {}

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory, or addresses, from the device; ``claim`` it once it is kept."""
        self.calls += 1
        made: list[Reservation] = []
        self._unclaimed[id(made)] = made
        try:
            # In one call, so that a signal handler cannot raise before it is noted.
            made.extend(map(self.inner.reserve, (nbytes,)))
        except BaseException:
            if not made:
                self._unclaimed.pop(id(made), None)
            raise
        return made[0]

    def claim(self, reservation: Reservation) -> None:
        """Say that somebody keeps a reservation, and will release it."""
        for call, made in self._unclaimed.copy().items():
            if made and made[0] is reservation:
                self._unclaimed.pop(call, None)

    def release_unclaimed(self) -> None:
        """Give back what was reserved and, for an interruption, nobody keeps."""
        for reservation in [
            one for made in list(self._unclaimed.values()) for one in made
        ]:
            with suppress(MadlError, ValueError):  # it was released, but not noted
                self.inner.release(reservation)
            self.claim(reservation)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back."""
        self.calls += 1
        self.inner.release(reservation)
        self.claim(reservation)

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

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Take away what a range may have, after a call that was interrupted.

        As ``SettlingBackend``, where the backend is one.
        """
        settle = getattr(self.inner, "settle", None)
        if settle is not None:
            settle(reservation, offset, nbytes, committed_nbytes=committed_nbytes)
        else:
            with suppress(MadlError, ValueError):  # it has nothing there
                self.decommit(reservation, offset, nbytes)

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

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy host memory to a range."""
        copying = self._having(Capability.COPY)
        copying.copy_from_host(reservation, offset, source, stream=stream)

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        """Copy a range to host memory."""
        copying = self._having(Capability.COPY)
        copying.copy_to_host(reservation, offset, destination, stream=stream)

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
        """Copy a range to another one of the device."""
        self._having(Capability.COPY).copy_inside(
            source,
            source_offset,
            destination,
            destination_offset,
            nbytes,
            stream=stream,
        )

    def fill(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
        *,
        stream: object = None,
    ) -> None:
        """Set every byte of a range."""
        filling = self._having(Capability.FILL)
        filling.fill(reservation, offset, nbytes, value, stream=stream)

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        """Return the device's own object for a range."""
        if self._viewing is None:
            raise self._lies("VIEW")
        return self._viewing.view(reservation, offset, nbytes)

    def stream_key(self, stream: object) -> Hashable:
        """Return what is equal for two objects of one stream; not counted."""
        key: Hashable = self._having(Capability.STREAM_ORDERED).stream_key(stream)
        return key

    def record(self, stream: object) -> object:
        """Return an event at the end of a stream."""
        event: object = self._having(Capability.STREAM_ORDERED).record(stream)
        return event

    def is_done(self, event: object) -> bool:
        """Return whether an event has been reached; not counted."""
        return bool(self._having(Capability.STREAM_ORDERED).is_done(event))

    def wait(self, stream: object, event: object) -> None:
        """Let a stream wait for an event."""
        self._having(Capability.STREAM_ORDERED).wait(stream, event)

    def synchronize(self, event: object) -> None:
        """Wait for an event."""
        self._having(Capability.STREAM_ORDERED).synchronize(event)

    def _having(self, capability: Capability) -> Any:  # noqa: ANN401  # which protocol it has, its capability says
        if capability not in self.capabilities:
            raise self._lies(str(capability.name))
        return self.inner

    def _lies(self, capability: str) -> MissingCapabilityError:
        return MissingCapabilityError(
            self.device, capability, "a backend that declares what it implements"
        )
