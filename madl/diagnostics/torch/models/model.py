"""What every model of an allocator answers."""

from typing import Protocol


class ReserveRefusedError(Exception):
    """The device has no more, also after what is cached was given back."""


class AllocatorModel(Protocol):
    """An allocator that only counts.

    Raised by ``allocate``: ReserveRefusedError; the model is then of no more use.
    """

    @property
    def peak_reserved_nbytes(self) -> int:
        """The most bytes taken from the device at once."""

    def allocate(self, allocation: int, nbytes: int, stream: int) -> None:
        """Place a request; ``allocation`` names it."""

    def free(self, allocation: int) -> None:
        """Give a block back, which stays in the cache."""


class Reserve:
    """Bytes taken from a device that has no more than ``capacity_nbytes``."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.nbytes = 0
        self.peak_nbytes = 0

    def has(self, nbytes: int) -> bool:
        """Return whether so many bytes are left."""
        return self.nbytes + nbytes <= self.capacity_nbytes

    def take(self, nbytes: int) -> None:
        """Take bytes that are there."""
        self.nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def give_back(self, nbytes: int) -> None:
        """Give bytes back."""
        self.nbytes -= nbytes
