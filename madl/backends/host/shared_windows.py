"""Shared memory of Windows: a file mapping with a random, unguessable name.

The mapping is there while any process has it open, and goes with the last of them.
"""

import ctypes
import mmap
import os
import secrets
import sys
from importlib import import_module
from typing import Any

from madl.backends.host import error_of
from madl.backends.host.windows_calls import OUT_OF_MEMORY
from madl.errors import AttachError, BackendCallError, NativeFailure

DEVICE = "shared"
GRANULARITY = mmap.ALLOCATIONGRANULARITY

_READ_WRITE = 2 | 4  # FILE_MAP_WRITE | FILE_MAP_READ


class Descriptor:
    """A mapping that is open in this process: it keeps the memory, mapped or not."""

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self._handle = handle
        self._close = _winapi().CloseHandle  # globals are gone at exit

    def __del__(self) -> None:
        self._close(self._handle)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import reduction

        # A second handle, which the receiver takes over: it keeps the memory while the
        # message is in flight, also when this process drops its own.
        dup_handle: Any = getattr(reduction, "DupHandle")  # noqa: B009  # of Windows
        return receive, (self.name, dup_handle(self._handle, _READ_WRITE), os.getpid())


def receive(name: str, sent: Any, sender: int) -> Descriptor | str:  # noqa: ANN401  # multiprocessing has no type for it
    """Take over a handle when what was sent is unpickled; or return why it is lost."""
    try:
        taken = Descriptor(name, sent.detach())
        # By the name too: mapping one that is not there any more would make another.
        return Descriptor(taken.name, _open(taken.name))
    except OSError:
        return f"process {sender} has given it to another process, or has ended"


class Segment:
    """A range of a mapping, in this process's address space."""

    def __init__(self, name: str, start: int, nbytes: int) -> None:
        self._mapping = _map(name, start, nbytes)
        self._start = ctypes.c_ubyte.from_buffer(self._mapping)
        self.address = ctypes.addressof(self._start)
        self.descriptor = Descriptor(name, _open(name))
        self.start = start

    def release(self) -> None:
        """Unmap the range; the memory stays while another process has it."""
        del self._start  # what is exported cannot be closed
        self._mapping.close()


def make(nbytes: int) -> Segment:
    """Return new memory; its bytes are 0."""
    return Segment(f"Local\\madl-{secrets.token_hex(16)}", 0, nbytes)


def attach(sent: Descriptor, start: int, nbytes: int) -> Segment:
    """Map a range of what was sent."""
    try:
        return Segment(sent.name, start, nbytes)
    except BackendCallError as error:  # it is smaller
        raise AttachError(DEVICE, nbytes, str(error.native)) from None


def describe() -> dict[str, str]:
    """Return what the memory is, for ``madl info``."""
    return {"shared memory": "CreateFileMapping, with a name", "sealed": "by itself"}


def _map(name: str, start: int, nbytes: int) -> mmap.mmap:
    if sys.platform != "win32":
        raise OSError("named mappings are a part of Windows")
    try:
        return mmap.mmap(-1, nbytes, tagname=name, offset=start)
    except (OSError, OverflowError) as error:
        code = getattr(error, "winerror", None) or 0
        native = NativeFailure("CreateFileMapping", code, str(error))
        is_refusal = code in OUT_OF_MEMORY or isinstance(error, OverflowError)
        raise error_of(
            native, "reserve", nbytes, is_refusal=is_refusal, device=DEVICE
        ) from None


def _open(name: str) -> int:
    """Return a handle of a mapping that exists."""
    handle: int = _winapi().OpenFileMapping(_READ_WRITE, False, name)
    return handle


def _winapi() -> Any:  # noqa: ANN401  # a module that only Windows has
    return import_module("_winapi")
