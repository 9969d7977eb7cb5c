"""A backend behind a counter of the calls that manage memory, and an undo for reserves.

Only these calls go through it. Copies, fills, views and streams are the user's own
work, and a question changes nothing: they are called on ``CountedBackend.backend``,
typed by the protocol of their capability.
"""

from contextlib import suppress
from typing import cast

from madl.backends.protocol import (
    PROTOCOLS,
    Backend,
    Capability,
    CommitBackend,
    RemapBackend,
    Reservation,
    SettlingBackend,
    missing_names,
)
from madl.errors import MadlError, MissingCapabilityError


class CountedBackend:
    """Passes on the five calls that manage memory; counts them, refused ones too.

    Raises:
        MissingCapabilityError: The backend claims a capability and lacks its methods.
    """

    def __init__(self, backend: Backend) -> None:
        _check_claims(backend)
        self.backend = backend
        self.device = backend.device
        self.capabilities = backend.capabilities
        self.granularity = backend.granularity
        self.alignment = backend.alignment
        self._committing = cast("CommitBackend", backend)
        self._remapping = cast("RemapBackend", backend)
        self.calls = 0
        # By call: a signal handler or finalizer may reserve in the middle of one.
        self._unclaimed: dict[int, list[Reservation]] = {}

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory, or addresses, from the device; ``claim`` it once it is kept."""
        self.calls += 1
        made: list[Reservation] = []
        self._unclaimed[id(made)] = made
        try:
            # One call: between a return and a store, a signal handler could raise, and
            # the reservation would be known to no list.
            made.extend(map(self.backend.reserve, (nbytes,)))
        except BaseException:
            if not made:
                self._unclaimed.pop(id(made), None)
            raise
        return made[0]

    def claim(self, reservation: Reservation) -> None:
        """Say that a reservation has an owner, which will release it."""
        for call, made in self._unclaimed.copy().items():
            if made and made[0] is reservation:
                self._unclaimed.pop(call, None)

    def release_unclaimed(self) -> None:
        """Give back what was reserved, and has no owner for an interruption."""
        for reservation in [
            one for made in list(self._unclaimed.values()) for one in made
        ]:
            with suppress(MadlError, ValueError):  # it was released, but not noted
                self.backend.release(reservation)
            self.claim(reservation)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back."""
        self.calls += 1
        self.backend.release(reservation)
        self.claim(reservation)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Back a range with memory."""
        self.calls += 1
        self._committing.commit(reservation, offset, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Take a range's memory away."""
        self.calls += 1
        self._committing.decommit(reservation, offset, nbytes)

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Take away what a range may have, after a call that was interrupted."""
        if Capability.SETTLE in self.capabilities:
            settling = cast("SettlingBackend", self.backend)
            settling.settle(
                reservation, offset, nbytes, committed_nbytes=committed_nbytes
            )
        else:
            with suppress(MadlError, ValueError):  # nothing is committed there
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
        self._remapping.remap(reservation, source, destination, nbytes, into=into)


def _check_claims(backend: Backend) -> None:
    can = backend.capabilities
    for capability, protocol in PROTOCOLS.items():
        if capability in can and (missing := missing_names(backend, protocol)):
            raise MissingCapabilityError(
                backend.device,
                f"{', '.join(missing)}, which {capability.name} promises",
                "a backend that declares what it implements",
            )
