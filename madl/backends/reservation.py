"""What passes between a pool and its backend: a reservation, and how much there is."""

from typing import NamedTuple


class Reservation(NamedTuple):
    """One contiguous piece of device memory, or of its address space.

    Attributes:
        native: What the device's own API calls it: an address, a ``cl_mem``.
        nbytes: Its length.
        address: ``None`` where the API has no addresses.
    """

    native: object
    nbytes: int
    address: int | None


class MemoryInfo(NamedTuple):
    """Memory of the whole device, in bytes, all processes together.

    Attributes:
        total_nbytes: Memory that there is.
        available_nbytes: Memory that nobody uses now.
    """

    total_nbytes: int
    available_nbytes: int
