"""Backends that share memory, and are wrong in one way each."""

import ctypes
from typing import Any

from madl.backends.protocol import Reservation
from madl.backends.shared import SharedBackend
from madl.errors import AttachError


class AttachesACopy(SharedBackend):
    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        attached = super().attach(shared, offset, nbytes)
        copy = self.reserve(nbytes)
        ctypes.memmove(copy.address or 0, attached.address or 0, nbytes)
        self.release(attached)
        return copy


class AttachesFromTheStart(SharedBackend):
    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        return super().attach(shared, 0, nbytes)


class SharesWhatItOwns(SharedBackend):
    """What it shares is gone with the owner's reservation."""

    def share(self, reservation: Reservation) -> object:
        return reservation

    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        assert isinstance(shared, Reservation)
        return super().attach(super().share(shared), offset, nbytes)


class EmptiesWhatItReleases(SharedBackend):
    def release(self, reservation: Reservation) -> None:
        self._kept.find(reservation)
        ctypes.memset(reservation.address or 0, 0, self.granularity)
        super().release(reservation)


class SharesWithinItself(SharedBackend):
    """What it shares cannot be sent."""

    def share(self, reservation: Reservation) -> object:
        shared = super().share(reservation)
        return lambda: shared

    def attach(self, shared: Any, offset: int, nbytes: int) -> Reservation:  # noqa: ANN401  # its own function
        return super().attach(shared(), offset, nbytes)


class AttachesPartsOfTheStart(SharedBackend):
    """Whoever asks for more than there is gets something else."""

    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        try:
            return super().attach(shared, offset, nbytes)
        except AttachError:
            return super().attach(shared, 0, nbytes)
