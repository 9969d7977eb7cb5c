"""Host memory without system calls of its own: whole mappings by Python's ``mmap``.

It serves WebAssembly, illumos, Haiku and what comes: private anonymous memory, whole
pieces only. Without a call to commit a part, a reservation is memory from the start.
"""

import ctypes
import errno
import mmap
import os
import sys

from madl.backends.host import DEVICE, HostMemory, HostReservation, error_of
from madl.backends.protocol import MemoryInfo
from madl.errors import MissingCapabilityError, NativeFailure
from madl.sizes import ADDRESS_SPACE_NBYTES

_LACK = f"madl has no calls of its own for {sys.platform}"


class PlainReservation(HostReservation):
    """One mapping, released whole."""

    def __init__(self, mapping: mmap.mmap, nbytes: int) -> None:
        self._mapping = mapping
        self._start = ctypes.c_ubyte.from_buffer(mapping)
        self.address = ctypes.addressof(self._start)
        self.nbytes = nbytes

    def commit(self, offset: int, nbytes: int) -> None:
        """Raise: all of it is committed from the start."""
        raise _lack("commits of a part")

    def decommit(self, offset: int, nbytes: int) -> None:
        """Raise: a part cannot be given back."""
        raise _lack("decommits of a part")

    def remap(
        self,
        source: int,
        destination: int,
        nbytes: int,
        into: HostReservation | None = None,
    ) -> None:
        """Raise: memory cannot move."""
        raise _lack("moves")

    def release(self) -> None:
        """Give the memory back."""
        del self._start  # what is exported cannot be closed
        self._mapping.close()


class PlainMemory(HostMemory):
    """Memory in whole mappings."""

    alignment = mmap.PAGESIZE
    commit_refusal = _LACK
    remap_refusal = _LACK
    numa_refusal = _LACK
    huge_pages = "huge pages"

    def choose_guard_pages(self) -> None:
        """Raise: all of a reservation is usable."""
        raise _lack("guard pages", "debug=True")

    def reserve(self, nbytes: int) -> PlainReservation:
        """Take memory."""
        # Private: a forked child must not write into what its parent has.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            mapping = mmap.mmap(-1, nbytes, flags=flags)
        except OverflowError as error:
            native = NativeFailure("mmap.mmap", errno.ENOMEM, str(error))
            raise error_of(native, "reserve", nbytes, is_refusal=True) from None
        except OSError as error:
            code, text = error.errno or 0, error.strerror or ""
            native = NativeFailure("mmap.mmap", code, text)
            is_refusal = code in (errno.ENOMEM, errno.EAGAIN)
            raise error_of(native, "reserve", nbytes, is_refusal=is_refusal) from None
        reservation = PlainReservation(mapping, nbytes)
        if self.is_prefaulting:
            ctypes.memset(reservation.address, 0, nbytes)
        return reservation

    def memory_info(self) -> MemoryInfo:
        """Return the machine's memory, as far as the system says."""
        total = min(_pages("SC_PHYS_PAGES") * mmap.PAGESIZE, ADDRESS_SPACE_NBYTES)
        available = _pages("SC_AVPHYS_PAGES") * mmap.PAGESIZE
        return MemoryInfo(total, min(available or total, total))

    def describe(self) -> dict[str, str]:
        """Return what is missing."""
        return {
            "commit": f"at once, whole reservations ({self.commit_refusal})",
            "remap": self.remap_refusal,
            "huge pages": "as the system chooses",
        }


def _pages(name: str) -> int:
    try:
        return max(os.sysconf(name), 0)
    except (ValueError, OSError):  # the system does not know the name
        return 0


def _lack(what: str, instead: str = "use whole reservations") -> MissingCapabilityError:
    return MissingCapabilityError(DEVICE, f"{what} ({_LACK})", instead)
