"""Host memory of POSIX systems: reserve with PROT_NONE, commit with mprotect.

Each system's own module adds its numbers, and what it does better.
"""

import ctypes
import mmap
from collections.abc import Callable
from typing import NamedTuple

from madl.backends.host import HostMemory, HostReservation
from madl.backends.host import posix_calls as posix
from madl.backends.host.posix_calls import PROT_NONE, READ_WRITE


class MapFlags(NamedTuple):
    """The numbers of ``mmap`` on one system: they differ, and few are refused."""

    anonymous: int
    """MAP_ANON, with MAP_PRIVATE."""
    reserving: int
    """MAP_NORESERVE, where there is one; 0 elsewhere."""
    fixed: int = 0x10


def declare_sysctl(library: ctypes.CDLL) -> Callable[..., int]:
    """Return ``sysctlbyname`` of macOS and the BSDs."""
    name, place, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(posix.NBYTES)
    return posix.declare(
        library, "sysctlbyname", *(posix.INT, name, place, size, place, posix.NBYTES)
    )


class PosixReservation(HostReservation):
    """A range of addresses that cannot be touched before it is committed."""

    def __init__(self, memory: "PosixMemory", address: int, nbytes: int) -> None:
        self._memory = memory
        self._calls = memory.calls
        self._is_prefaulting = memory.is_prefaulting
        self.address = address
        self.nbytes = nbytes

    def commit(self, offset: int, nbytes: int) -> None:
        """Make the addresses usable."""
        address = self._place(offset, nbytes)
        if self._calls.mprotect(address, nbytes, READ_WRITE) != 0:
            try:  # the error has no name, or it and this frame would keep each other
                raise posix.error_of("mprotect", "commit", nbytes, is_refusal=True)
            finally:
                # Of several VMAs, the first may have been changed before one failed.
                self._replace(address, nbytes, PROT_NONE)
        self._prefault(address, nbytes)

    def decommit(self, offset: int, nbytes: int) -> None:
        """Replace the memory by addresses that nothing is behind."""
        # A new mapping: madvise is lazy on some systems, and keeps the memory resident.
        if not self._seal(offset, nbytes):
            raise posix.error_of("mmap", "decommit", nbytes)

    def release(self) -> None:
        """Give the address space back."""
        self._calls.unmap(self.address, self.nbytes)

    def _prefault(self, address: int, nbytes: int) -> None:
        """Make the first touch now, if that was asked for: there is no call for it."""
        if self._is_prefaulting:
            ctypes.memset(address, 0, nbytes)

    def _place(self, offset: int, nbytes: int) -> int:
        """Return the address of a range of whole OS pages inside the reservation.

        The BSDs round any other range to whole pages, and so take from a neighbour.
        """
        is_whole = offset % mmap.PAGESIZE == 0 == nbytes % mmap.PAGESIZE
        if not is_whole or not 0 <= offset < offset + nbytes <= self.nbytes:
            raise ValueError(
                f"a range must be whole OS pages of {mmap.PAGESIZE} bytes inside "
                f"{self.nbytes}, got {nbytes} at {offset}"
            )
        return self.address + offset

    def _seal(self, offset: int, nbytes: int) -> bool:
        """Put addresses in place that nothing is behind; return whether it worked."""
        address = self._place(offset, nbytes)
        try:
            return self._replace(address, nbytes, PROT_NONE)
        except BaseException:  # a Ctrl-C: it counts as committed still
            self._calls.mprotect(address, nbytes, READ_WRITE)
            raise

    def _replace(self, address: int, nbytes: int, access: int) -> bool:
        """Map new memory over a range, in one step; return whether it worked."""
        flags = self._memory.flags
        mapped = self._calls.mmap(
            address, nbytes, access, flags.anonymous | flags.fixed, -1, 0
        )
        return mapped == address


class PosixMemory(HostMemory):
    """A system's memory through one C library."""

    alignment = posix.ALIGNMENT
    remap_refusal = "this system has no call that moves memory"
    numa_refusal = "madl knows no call for it on this system"

    def __init__(self, calls: posix.PosixCalls, flags: MapFlags) -> None:
        self.calls = calls
        self.flags = flags

    def reserve(self, nbytes: int) -> PosixReservation:
        """Take address space."""
        return PosixReservation(self, self._take(nbytes, PROT_NONE), nbytes)

    def _take(self, nbytes: int, access: int) -> int:
        flags = self.flags.anonymous | self.flags.reserving
        return self.calls.reserve(nbytes, access, flags)
