"""The system calls of Linux that madl makes, through ctypes, and their numbers."""

import ctypes
import mmap
import os

from madl.backends.host import posix_calls as posix
from madl.backends.host.posix_calls import ADDRESS, INT, NBYTES

ALIGNMENT = posix.ALIGNMENT  # the huge page of x86, and of arm64 with 4 KiB pages
PROT_NONE, READ_WRITE, FAILED = posix.PROT_NONE, posix.READ_WRITE, posix.FAILED
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MACHINE = os.uname().machine[:3]
# Python's mmap module has MAP_NORESERVE from 3.13, and never the others. It and
# MAP_HUGETLB are the only ones that differ between architectures.
_ODD_NORESERVE = {"alp": 0x10000, "mip": 0x400, "ppc": 0x40, "spa": 0x40}
LAZY = ANONYMOUS | _ODD_NORESERVE.get(_MACHINE, 0x4000)
_FIXED = 0x10
FILL_HOLE = LAZY | 0x100000  # MAP_FIXED_NOREPLACE
_EXPLICIT = ANONYMOUS | {"alp": 0x100000, "mip": 0x80000}.get(_MACHINE, 0x40000)
MOVE = 1 | 2 | 4  # MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
_POPULATE_WRITE, _COLLAPSE = 23, 25  # advices of Linux 5.14 and 6.1
_SET_VMA, _ANON_NAME = 0x53564D41, 0  # PR_SET_VMA, PR_SET_VMA_ANON_NAME
_NAME = b"madl"
error_of = posix.error_of

libc = ctypes.CDLL(None, use_errno=True)


class LinuxCalls(posix.PosixCalls):
    """The functions that Linux adds."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self.mremap = posix.declare(
            library, "mremap", *(ADDRESS, ADDRESS, NBYTES, NBYTES, INT, ADDRESS)
        )
        name = ADDRESS, NBYTES, ctypes.c_char_p
        self.prctl = posix.declare(library, "prctl", INT, INT, ctypes.c_ulong, *name)


system = LinuxCalls(libc)


def discard(address: int, nbytes: int) -> None:
    """Give the memory of a range back; its addresses stay mapped."""
    # What mlock() holds needs the second advice, which Linux has from 5.18.
    advices = mmap.MADV_DONTNEED, 24  # MADV_DONTNEED_LOCKED
    if all(system.madvise(address, nbytes, advice) != 0 for advice in advices):
        raise error_of("madvise", "decommit", nbytes)


def give_name(address: int, nbytes: int) -> bool:
    """Let /proc/self/maps say whose a range is; return whether this kernel can."""
    return system.prctl(_SET_VMA, _ANON_NAME, address, nbytes, _NAME) == 0


def populate(address: int, nbytes: int) -> bool:
    """Fault a range in, as writing to it would; return whether it worked."""
    return system.madvise(address, nbytes, _POPULATE_WRITE) == 0


def touch(address: int, nbytes: int) -> bool:
    """Fault a range in by writing zeros, for kernels that have no call for it."""
    ctypes.memset(address, 0, nbytes)
    return True


def make_huge(address: int, nbytes: int) -> bool:
    """Put a huge page in the place of one byte; return whether it worked."""
    ctypes.memset(address, 0, 1)
    return system.madvise(address, nbytes, _COLLAPSE) == 0


def collapse(address: int, nbytes: int, *, huge_nbytes: int) -> bool:
    """Fault a range in as huge pages, in any mode of the system for them.

    Where there is no huge page left, small ones will do.
    """
    for offset in range(0, nbytes, huge_nbytes):
        if not make_huge(address + offset, huge_nbytes):
            return populate(address + offset, nbytes - offset)
    return True


def map_explicit(address: int, nbytes: int) -> bool:
    """Map huge pages of the kernel's stock, at an address if there is one.

    Returns:
        Whether it worked. At address 0 it is a trial, and nothing stays mapped.
    """
    flags = _EXPLICIT | (_FIXED if address else 0)
    mapped = system.mmap(address, nbytes, READ_WRITE, flags, -1, 0)
    if not address and mapped != FAILED:
        system.munmap(mapped, nbytes)
    return mapped != FAILED
