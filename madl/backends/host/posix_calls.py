"""The calls for memory that every POSIX system has, through ctypes, and their errors.

Their numbers differ from one system to the next, so each module brings its own.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable

from madl.backends import host
from madl.errors import BackendCallError, MadlError, NativeFailure
from madl.sizes import ADDRESS_SPACE_NBYTES, align_up

ALIGNMENT = 2 << 20
"""Of reservations: the larger page of most processors with OS pages of 4 KiB."""

PROT_NONE, READ_WRITE = 0, 1 | 2
FAILED = ADDRESS_SPACE_NBYTES - 1
OUT_OF_MEMORY = (errno.ENOMEM, errno.EAGAIN)  # EAGAIN: more than may be locked

# Addresses are size_t: unsigned, and an int even where a pointer would be None.
ADDRESS, NBYTES, INT = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int


def declare(
    library: ctypes.CDLL, name: str, result: type, *arguments: type
) -> Callable[..., int]:
    """Return a C function of a library, with its prototype."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # getattr of a CDLL is Any


def error_of(
    call: str,
    verb: str,
    nbytes: int,
    *,
    is_refusal: bool = False,
    device: str = host.DEVICE,
) -> MadlError:
    """Return the error that errno stands for; ENOMEM can be a refusal, or a bug."""
    code = ctypes.get_errno()
    native = NativeFailure(call, code, os.strerror(code))
    is_refusal = is_refusal and code in OUT_OF_MEMORY
    return host.error_of(native, verb, nbytes, is_refusal=is_refusal, device=device)


class PosixCalls:
    """The functions of one C library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.mmap = declare(
            library,
            # 32-bit glibc and bionic give mmap a 32-bit off_t; others' is 64 bits.
            "mmap64" if hasattr(library, "mmap64") else "mmap",
            *(ADDRESS, ADDRESS, NBYTES, INT, INT, INT, ctypes.c_int64),
        )
        self.munmap = declare(library, "munmap", INT, ADDRESS, NBYTES)
        self.mprotect = declare(library, "mprotect", INT, ADDRESS, NBYTES, INT)
        self.madvise = declare(library, "madvise", INT, ADDRESS, NBYTES, INT)

    def reserve(
        self, nbytes: int, access: int, flags: int, start: int = ALIGNMENT
    ) -> int:
        """Return the address of a new reservation, a multiple of ``start``.

        More is mapped, and what is too much goes back: only some systems can be asked
        for an alignment.
        """
        # ctypes passes a number beyond the address space on without its upper bits.
        asked = min(nbytes + start, ADDRESS_SPACE_NBYTES) - mmap.PAGESIZE
        mapped = self.mmap(0, asked, access, flags, -1, 0)
        if mapped == FAILED:
            raise error_of("mmap", "reserve", nbytes, is_refusal=True)
        end = mapped + asked
        address = align_up(mapped, start)
        try:
            self.unmap(address + nbytes, end - address - nbytes)
            end = address + nbytes
            self.unmap(mapped, address - mapped)
        except BackendCallError:
            self.munmap(mapped, end - mapped)
            raise
        except BaseException:  # a Ctrl-C: the ends may be mapped anew by now
            self.munmap(address, nbytes)
            raise
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        """Give addresses, and the memory behind them, back, if there are any."""
        if nbytes and self.munmap(address, nbytes) != 0:
            raise error_of("munmap", "release", nbytes)
