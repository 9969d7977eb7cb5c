"""Shared memory of POSIX systems: a mapped file without a name.

What other processes get is a descriptor, so none can attach what it was not sent,
and the kernel takes the memory back with the last mapping and the last descriptor,
however their processes end.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable
from typing import Any

from madl.backends.host import posix_calls as posix
from madl.errors import AttachError
from madl.sizes import ADDRESS_SPACE_NBYTES

DEVICE = "shared"
GRANULARITY = mmap.PAGESIZE

_CLOSE_ON_EXEC, _ALLOW_SEALING, _NO_EXECUTION = 1, 2, 8  # MFD_*, the last from 6.3
_TOO_LARGE = (errno.EFBIG, errno.EOVERFLOW)

_libc = ctypes.CDLL(None, use_errno=True)
_calls = posix.PosixCalls(_libc)
# Linux 3.17 with glibc 2.27, FreeBSD 13, Android 11.
_create: Callable[..., int] | None = None
if hasattr(_libc, "memfd_create"):
    _create = posix.declare(
        _libc, "memfd_create", posix.INT, ctypes.c_char_p, ctypes.c_uint
    )


class Descriptor:
    """An open file of this process, which keeps the memory and can be sent on."""

    __slots__ = ("file",)

    def __init__(self, file: int) -> None:
        self.file = file

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(self.file)  # a default: globals are gone at exit

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return receive, (DupFd(self.file), os.getpid())


def receive(sent: Any, sender: int) -> Descriptor | str:  # noqa: ANN401  # multiprocessing has no type for it
    """Return the descriptor that was sent, when that is unpickled, or why it is lost.

    The sender need not keep it then. The reason is raised by the attach: raised here,
    it would end a worker before that has begun.
    """
    from multiprocessing import AuthenticationError

    try:
        file: int = sent.detach()
    except AuthenticationError:
        return f"process {sender} is no relative of this one"
    except (FileNotFoundError, ConnectionRefusedError):
        return f"process {sender}, which sent it, has ended"
    except (OSError, EOFError, RuntimeError):
        return f"process {sender} has given it to another process, or has ended"
    os.set_inheritable(file, False)
    return Descriptor(file)


class Segment:
    """A range of a file, mapped for reading and writing."""

    def __init__(self, descriptor: Descriptor, start: int, nbytes: int) -> None:
        self.descriptor = descriptor
        self.start = start
        self.nbytes = nbytes
        self.address = _calls.mmap(
            0, nbytes, posix.READ_WRITE, mmap.MAP_SHARED, descriptor.file, start
        )
        if self.address == posix.FAILED:
            raise _error("mmap", nbytes)

    def release(self) -> None:
        """Unmap the range; the memory stays while another process has it."""
        if _calls.munmap(self.address, self.nbytes) != 0:
            raise posix.error_of("munmap", "release", self.nbytes, device=DEVICE)


def make(nbytes: int) -> Segment:
    """Return new memory; its bytes are 0."""
    if nbytes >= ADDRESS_SPACE_NBYTES:  # ctypes would drop the upper bits
        ctypes.set_errno(errno.ENOMEM)
        raise _error("mmap", nbytes)
    descriptor = Descriptor(_open_file(nbytes))
    if _create is not None:
        # Not 0o777, as a memfd has: other users could open it through /proc.
        _call("fchmod", nbytes, os.fchmod, descriptor.file, 0o600)
    _call("ftruncate", nbytes, os.ftruncate, descriptor.file, nbytes)
    if _has_seals():
        # Sealed against a change of size: a truncated mapping is a SIGBUS.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        _call("fcntl", nbytes, fcntl.fcntl, descriptor.file, fcntl.F_ADD_SEALS, seals)
    return Segment(descriptor, 0, nbytes)


def attach(sent: Descriptor, start: int, nbytes: int) -> Segment:
    """Map a range of what was sent."""
    there = os.fstat(sent.file).st_size
    if there < start + nbytes:  # the first touch beyond its end is a SIGBUS
        reason = f"the file has {there} bytes, {start + nbytes} are needed"
        raise AttachError(DEVICE, nbytes, reason)
    return Segment(sent, start, nbytes)


def describe() -> dict[str, str]:
    """Return what the files are, for ``madl info``."""
    kind = "memfd_create" if _create is not None else "shm_open, unlinked at once"
    return {"shared memory": kind, "sealed": "yes" if _has_seals() else "no"}


def _open_file(nbytes: int) -> int:
    """Return a new file of no size that no path leads to."""
    if _create is None:
        return _open_unlinked(nbytes)
    for more in (_NO_EXECUTION, 0):
        file = _create(b"madl", _CLOSE_ON_EXEC | _ALLOW_SEALING | more)
        if file >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    if file < 0:
        raise _error("memfd_create", nbytes)
    return file


def _open_unlinked(nbytes: int) -> int:
    """Return a file that had a random name until it was opened and unlinked."""
    # What multiprocessing calls itself; it has no types.
    from _posixshmem import shm_open, shm_unlink  # type: ignore[import-not-found]

    name = f"/madl-{secrets.token_hex(8)}"  # macOS takes 31 characters
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
    file: int = _call("shm_open", nbytes, shm_open, name, flags, 0o600)
    shm_unlink(name)
    return file


def _has_seals() -> bool:
    return _create is not None and hasattr(fcntl, "F_ADD_SEALS")


def _call(
    name: str, nbytes: int, function: Callable[..., Any], *arguments: object
) -> Any:  # noqa: ANN401  # whatever the function returns
    """Call one of Python's own functions; its errors become madl's."""
    try:
        return function(*arguments)
    except OSError as error:
        code = error.errno or 0
        ctypes.set_errno(errno.ENOMEM if code in _TOO_LARGE else code)
        raise _error(name, nbytes) from None


def _error(call: str, nbytes: int) -> Exception:
    return posix.error_of(call, "reserve", nbytes, is_refusal=True, device=DEVICE)
