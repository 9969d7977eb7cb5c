"""Bytes of CUDA memory, and ranges of it, for the tests."""

from madl import Memory
from madl.backends.cuda import CudaBackend
from madl.backends.protocol import Reservation
from madl.memory.place import locate, reserved_place
from tests.backends.cuda.emulator import Emulator

MIB = 1 << 20
PAGE = 2 * MIB


def read(
    backend: CudaBackend, reservation: Reservation, offset: int = 0, nbytes: int = 8
) -> bytes:
    """Return bytes of the device."""
    found = bytearray(nbytes)
    backend.copy_to_host(reservation, offset, memoryview(found))
    return bytes(found)


def usable(emulator: Emulator, *reservations: Reservation) -> list[bool]:
    """Return for each granule of reservations whether the device can use it."""
    return [
        emulator.is_usable(reservation.address + offset, PAGE)
        for reservation in reservations
        if reservation.address is not None
        for offset in range(0, reservation.nbytes, PAGE)
    ]


def place(memory: Memory) -> tuple[Reservation, int, int]:
    """Return where a memory lies, and its bytes."""
    arena, offset = locate(memory, "a test")
    assert arena is not None
    return *reserved_place(arena, offset), memory.nbytes
