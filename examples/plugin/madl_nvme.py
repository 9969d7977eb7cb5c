"""Memory that is a file on a fast disk: the devices ``"nvme:0"``, ``"nvme:1"``, ...

``NVME_FOLDERS`` lists the folders, one for each device. Without it there is one device,
in the folder for temporary files. A pool over it holds more than fits in memory, and
the CPU reads and writes it like any other address.
"""

import ctypes
import errno
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from madl.backends import hookimpl
from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import (
    BackendCallError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)

_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class _Mapped(NamedTuple):
    memory: mmap.mmap
    file: IO[bytes]


class NvmeBackend:
    """Files in one folder, each as large as what was asked for, and without a name.

    There is no COMMIT: a file's blocks are taken when it is made, so that a full disk
    is an ``OutOfMemoryError`` then and not a signal at the first touch.
    """

    capabilities = Capability.HOST_ACCESS | Capability.DESCRIBE
    granularity = mmap.ALLOCATIONGRANULARITY
    alignment = mmap.ALLOCATIONGRANULARITY

    def __init__(self, device: str, folder: Path) -> None:
        self.device = device
        self._folder = folder
        self._mapped: dict[int, _Mapped] = {}

    def reserve(self, nbytes: int) -> Reservation:
        """Make a file of ``nbytes`` and map it."""
        # Ask first: where blocks cannot be taken at once, libc writes to each one.
        if nbytes > shutil.disk_usage(self._folder).free:
            raise self._error("reserve", nbytes, OSError(errno.ENOSPC, "disk full"))
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # until release
        try:
            _take_blocks(file, nbytes)
            memory = mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            file.close()
            raise self._error("reserve", nbytes, error) from error
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._mapped[address] = _Mapped(memory, file)
        return Reservation(memory, nbytes, address)

    def release(self, reservation: Reservation) -> None:
        """Unmap a file and remove it."""
        mapped = self._mapped.get(reservation.address or 0)
        if mapped is None or mapped.memory is not reservation.native:
            raise ValueError(
                f"reservation must be one of this backend ({self.device}) that was not "
                f"released yet, got {reservation!r}"
            )
        mapped.memory.close()
        mapped.file.close()
        del self._mapped[reservation.address or 0]

    def memory_info(self) -> MemoryInfo:
        """Return what the disk has."""
        usage = shutil.disk_usage(self._folder)
        return MemoryInfo(usage.total, usage.free)

    def describe(self) -> dict[str, str]:
        """Return what ``madl info`` shows besides."""
        return {"folder": str(self._folder)}

    def _error(self, action: str, nbytes: int, error: OSError) -> Exception:
        native = NativeFailure(action, error.errno or 0, error.strerror or str(error))
        if error.errno in _IS_FULL:
            report = OutOfMemoryReport(self.device, nbytes, nbytes, native=native)
            return OutOfMemoryError(report)
        return BackendCallError(self.device, action, native)


def _take_blocks(file: IO[bytes], nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return
    piece = bytes(1 << 20)
    for start in range(0, nbytes, len(piece)):
        file.write(piece[: nbytes - start])
    file.flush()


def _folders() -> dict[str, Path]:
    """Return the folder of each device that can be opened."""
    listed = os.environ.get("NVME_FOLDERS", "").split(os.pathsep)
    named = [Path(name) for name in listed if name] or [Path(tempfile.gettempdir())]
    return {
        f"nvme:{number}": folder
        for number, folder in enumerate(named)
        if os.access(folder, os.W_OK)
    }


@hookimpl
def madl_devices() -> list[str]:
    """Return a device for each folder."""
    return list(_folders())


@hookimpl
def madl_open(device: str) -> NvmeBackend | None:
    """Return a backend in the device's folder."""
    name = "nvme:0" if device == "nvme" else device
    folder = _folders().get(name)
    return None if folder is None else NvmeBackend(name, folder)
