"""Access to a backend under test: reserve, commit, read and write, released at exit."""

import ctypes
import random
from typing import Any, Self

from madl.backends.protocol import Backend, Capability, Reservation
from madl.errors import BackendCallError, OutOfMemoryError
from madl.sizes import align_up, format_nbytes

USUAL_UNIT_NBYTES = 4096

_Bytes = bytes | bytearray


class Workbench:
    """Takes from a backend, and gives back what is left at the end.

    Args:
        backend: Under test. Optional methods are called as its capabilities promise.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend: Any = backend  # which protocols it has, its capabilities say
        self.granule: int = backend.granularity
        self.unit = align_up(USUAL_UNIT_NBYTES, max(backend.granularity, 1))
        self._taken: list[Reservation] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        while self._taken:
            try:
                self.release(self._taken[-1])
            except Exception:
                if error is None:
                    raise
                self._taken.clear()  # the first error is the one to show

    def has(self, capability: Capability) -> bool:
        """Return whether the backend claims all of a capability."""
        return capability in self.backend.capabilities

    @property
    def has_content(self) -> bool:
        """Whether bytes can be written and read back."""
        return self.has(Capability.HOST_ACCESS) or self.has(Capability.COPY)

    def reserve(self, nbytes: int) -> Reservation:
        """Take a reservation that is released at the end, if not before."""
        reservation: Reservation = self.backend.reserve(nbytes)
        self._taken.append(reservation)
        return reservation

    def attach(self, shared: object, offset: int, nbytes: int) -> Reservation:
        """Attach what was shared; it is released at the end, if not before."""
        reservation: Reservation = self.backend.attach(shared, offset, nbytes)
        self._taken.append(reservation)
        return reservation

    def usable(self, nbytes: int) -> Reservation:
        """Take a reservation and commit all of it, where that is needed."""
        reservation = self.reserve(nbytes)
        self.commit(reservation, 0, nbytes)
        return reservation

    def written(self, nbytes: int) -> tuple[Reservation, bytes]:
        """Take a reservation and fill it with a pattern; return both."""
        reservation, data = self.usable(nbytes), pattern(nbytes, 1)
        self.write(reservation, 0, data)
        return reservation, data

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Commit a range; without COMMIT it is committed already."""
        if self.has(Capability.COMMIT):
            self.backend.commit(reservation, offset, nbytes)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back."""
        at = next(n for n, one in enumerate(self._taken) if one is reservation)
        del self._taken[at]  # before the call: a release that fails is not retried
        self.backend.release(reservation)

    def write(self, reservation: Reservation, offset: int, data: bytes) -> None:
        """Write bytes, by the CPU where it can."""
        if self.has(Capability.HOST_ACCESS):
            ctypes.memmove(address_of(reservation) + offset, data, len(data))
        else:
            self.backend.copy_from_host(reservation, offset, memoryview(data))

    def read(self, reservation: Reservation, offset: int, nbytes: int) -> bytes:
        """Read bytes, by the CPU where it can."""
        if self.has(Capability.HOST_ACCESS):
            return ctypes.string_at(address_of(reservation) + offset, nbytes)
        return self.copied(reservation, offset, nbytes)

    def assert_holds(
        self, reservation: Reservation, offset: int, expected: _Bytes, what: str
    ) -> None:
        """Fail with the first byte that is not as expected."""
        assert_bytes(self.read(reservation, offset, len(expected)), expected, what)

    def copied(self, reservation: Reservation, offset: int, nbytes: int) -> bytes:
        """Read bytes by a copy to the host."""
        destination = bytearray(nbytes)
        self.backend.copy_to_host(reservation, offset, memoryview(destination))
        return bytes(destination)

    def available_nbytes(self) -> int:
        """Return what the device has left."""
        available: int = self.backend.memory_info().available_nbytes
        return available

    def assert_nothing_taken(self, before: int, what: str) -> None:
        """Fail if the device has less than half of what was left before a call."""
        after = self.available_nbytes()
        assert after >= before // 2, (
            f"{what} must take nothing, but {format_nbytes(before)} were available "
            f"before it, and {format_nbytes(after)} after"
        )

    def large_nbytes(self, most_nbytes: int | None = None) -> int:
        """Return about half of what the device has left, or as much as it grants."""
        wanted = self.available_nbytes() // 2
        nbytes = self.whole(wanted if most_nbytes is None else most_nbytes)
        while nbytes > self.unit:
            try:
                self.release(self.usable(nbytes))
            except OutOfMemoryError:
                self._release_all()  # it may have been reserved, but not committed
                nbytes = self.whole(nbytes // 2)
            else:
                break
        return nbytes

    def whole(self, nbytes: int) -> int:
        """Return so many bytes in whole units, one at least."""
        return max(nbytes // self.unit, 1) * self.unit

    def _release_all(self) -> None:
        while self._taken:
            self.release(self._taken[-1])


def address_of(reservation: Reservation) -> int:
    """Return a reservation's address, which HOST_ACCESS promises."""
    assert reservation.address is not None, (
        "HOST_ACCESS is claimed, but a reservation has no address"
    )
    return reservation.address


def pattern(nbytes: int, seed: int) -> bytes:
    """Return bytes without a pattern, other ones for each seed."""
    return random.Random(seed).randbytes(nbytes)


def assert_bytes(found: _Bytes, expected: _Bytes, what: str) -> None:
    """Fail with the first byte that differs."""
    if found == expected:
        return
    at = next(
        (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
        min(len(found), len(expected)),
    )
    raise AssertionError(
        f"{what}: byte {at} of {len(expected)} is {found[at : at + 1].hex() or 'gone'}"
        f", expected {expected[at : at + 1].hex() or 'none'}"
    )


REFUSALS = (BackendCallError, ValueError)
"""What a backend raises for a reservation that is not its own."""
