"""The system calls of Linux that madl makes, through ctypes, and their errors."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable

from madl.errors import (
    BackendCallError,
    MadlError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.sizes import ADDRESS_SPACE_NBYTES, align_up, format_nbytes

ALIGNMENT = 2 << 20  # the huge page of x86, and of arm64 with OS pages of 4 KiB

PROT_NONE, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
# Python's mmap module has MAP_NORESERVE from 3.13, and never the others. It is the
# only one that differs between architectures.
_ODD_NORESERVE = {"alp": 0x10000, "mip": 0x400, "ppc": 0x40, "spa": 0x40}
LAZY = ANONYMOUS | _ODD_NORESERVE.get(os.uname().machine[:3], 0x4000)
SEAL, FILL_HOLE = ANONYMOUS | 0x10, LAZY | 0x100000  # FIXED, FIXED_NOREPLACE
MOVE = 1 | 2 | 4  # MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
FAILED = ADDRESS_SPACE_NBYTES - 1
OUT_OF_MEMORY = (errno.ENOMEM, errno.EAGAIN)  # EAGAIN: more than may be locked
DEVICE = "cpu"

libc = ctypes.CDLL(None, use_errno=True)


def declare(name: str, result: type, *arguments: type) -> Callable[..., int]:
    function = getattr(libc, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # getattr of a CDLL is Any


# Addresses are size_t: unsigned, and an int even where a pointer would be None.
_ADDRESS, _NBYTES, _INT = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
sys_mmap = declare(
    # 32-bit glibc and bionic give mmap a 32-bit off_t; musl's is 64 bits always.
    "mmap64" if hasattr(libc, "mmap64") else "mmap",
    *(_ADDRESS, _ADDRESS, _NBYTES, _INT, _INT, _INT, ctypes.c_int64),
)
sys_munmap = declare("munmap", _INT, _ADDRESS, _NBYTES)
sys_mprotect = declare("mprotect", _INT, _ADDRESS, _NBYTES, _INT)
sys_madvise = declare("madvise", _INT, _ADDRESS, _NBYTES, _INT)
sys_mremap = declare("mremap", _ADDRESS, _ADDRESS, _NBYTES, _NBYTES, _INT, _ADDRESS)


def error_of(
    call: str, verb: str, nbytes: int, *, is_refusal: bool = False
) -> MadlError:
    code = ctypes.get_errno()
    native = NativeFailure(call, code, os.strerror(code))
    if is_refusal and code in OUT_OF_MEMORY:
        report = OutOfMemoryReport(DEVICE, nbytes, nbytes, native=native)
        return OutOfMemoryError(report)
    return BackendCallError(DEVICE, f"{verb} {format_nbytes(nbytes)}", native)


def unmap(address: int, nbytes: int) -> None:
    if nbytes and sys_munmap(address, nbytes) != 0:
        raise error_of("munmap", "release", nbytes)


def discard(address: int, nbytes: int) -> None:
    # What mlock() holds needs the second advice, which Linux has from 5.18.
    advices = mmap.MADV_DONTNEED, 24  # MADV_DONTNEED_LOCKED
    if all(sys_madvise(address, nbytes, advice) != 0 for advice in advices):
        raise error_of("madvise", "decommit", nbytes)


def reserve_addresses(
    nbytes: int, access: int, flags: int, start: int = ALIGNMENT
) -> int:
    """Return the address of a new reservation, a multiple of ``start``."""
    # ctypes passes a number beyond the address space on without its upper bits.
    asked = min(nbytes + start, ADDRESS_SPACE_NBYTES) - mmap.PAGESIZE
    mapped = sys_mmap(0, asked, access, flags, -1, 0)
    if mapped == FAILED:
        raise error_of("mmap", "reserve", nbytes, is_refusal=True)
    end = mapped + asked
    address = align_up(mapped, start)
    try:
        unmap(address + nbytes, end - address - nbytes)
        end = address + nbytes
        unmap(mapped, address - mapped)
    except BackendCallError:
        sys_munmap(mapped, end - mapped)
        raise
    return address
