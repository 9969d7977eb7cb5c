"""The reservations of a backend that are not released yet, by their addresses."""

from typing import Generic, Protocol, TypeVar

from madl.backends.protocol import Reservation


class Releasable(Protocol):
    """What a system's module makes."""

    address: int

    def release(self) -> None:
        """Give it back to the system, or raise and change nothing."""


Made = TypeVar("Made", bound=Releasable)


class KeptReservations(Generic[Made]):
    """What a backend has made, and what it is asked for again.

    Args:
        device: Its name, for errors.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._made: dict[int | None, Made] = {}

    def keep(self, made: Made, nbytes: int) -> Reservation:
        """Return the reservation that stands for what was made."""
        self._made[made.address] = made
        return Reservation(made.address, nbytes, made.address)

    def find(self, reservation: Reservation) -> Made:
        """Return what a reservation stands for.

        Raises:
            ValueError: It was released, or is another backend's.
        """
        found = self._made.get(reservation.address)
        if found is None:
            raise ValueError(
                f"reservation must be one of this backend ({self._device}) that was "
                f"not released yet, got {reservation!r}"
            )
        return found

    def values(self) -> list[Made]:
        """Return all that is not released."""
        return list(self._made.values())

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back; one that its system does not take stays."""
        found = self.find(reservation)
        # First: a signal handler can be given the same address once it is free.
        del self._made[found.address]
        try:
            found.release()
        except Exception:
            self._made[found.address] = found
            raise
