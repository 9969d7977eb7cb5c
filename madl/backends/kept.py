"""A backend's table of live reservations, by address: foreign ones are refused."""

from typing import Generic, Protocol, TypeVar

from madl.backends.protocol import Reservation


def foreign(device: str, reservation: Reservation) -> ValueError:
    """Return the error for a reservation that was released, or is another's."""
    return ValueError(
        f"reservation must be one of this backend ({device}) that was not released "
        f"yet, got {reservation!r}"
    )


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
        self._kept: dict[int | None, tuple[Made, Reservation]] = {}

    def keep(self, made: Made, nbytes: int) -> Reservation:
        """Return the reservation that stands for what was made."""
        reservation = Reservation(made.address, nbytes, made.address)
        self._kept[made.address] = made, reservation
        return reservation

    def find(self, reservation: Reservation) -> Made:
        """Return what a reservation stands for.

        Raises:
            ValueError: It was released, or is another backend's.
        """
        found, kept = self._kept.get(reservation.address, (None, None))
        # By identity: after a release the system may map another reservation there.
        if found is None or kept is not reservation:
            raise foreign(self._device, reservation)
        return found

    def values(self) -> list[Made]:
        """Return all that is not released."""
        return [made for made, _ in list(self._kept.values())]

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back; one that its system does not take stays."""
        found = self.find(reservation)
        # Forgotten before it is released: another thread or a signal handler can be
        # given the same address as soon as it is free, and its entry would be deleted.
        del self._kept[found.address]
        try:
            found.release()
        except Exception:
            self._kept[found.address] = found, reservation
            raise
