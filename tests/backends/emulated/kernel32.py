"""The kernel32 emulation, built and loaded."""

import ctypes
import functools
import mmap
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from madl.backends.host.windows_calls import WindowsCalls, system_calls

FOLDER = Path(__file__).parent
ROWS = FOLDER / "kernel32_rows.toml"
ANY_NODE = (1 << 32) - 1
FLAGS = (
    *("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-fvisibility=hidden"),
)


class Kernel32:
    """A machine that runs Windows, in so far as madl calls it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.GetLastError.restype = ctypes.c_uint32
        library.EmuNodeOf.restype = ctypes.c_uint32
        library.EmuNodeOf.argtypes = (ctypes.c_size_t,)
        for name in ("EmuSetMemory", "EmuSetJob"):
            getattr(library, name).argtypes = [ctypes.c_size_t] * 3
        library.EmuSetMemory.argtypes = [ctypes.c_size_t] * 2
        library.EmuCommitted.restype = library.EmuRegionCount.restype = ctypes.c_size_t
        self.calls = WindowsCalls((library, library, library), self.last_error)
        self.library.EmuReset()

    def last_error(self) -> int:
        """Return the code of the last call that failed."""
        return int(self.library.GetLastError())

    @property
    def committed_nbytes(self) -> int:
        """Bytes that are committed, in all reservations."""
        return int(self.library.EmuCommitted())

    @property
    def reservation_count(self) -> int:
        """Reservations, and pieces of placeholders, that were not released."""
        return int(self.library.EmuRegionCount())

    def node_of(self, address: int) -> int:
        """Return the node that memory is preferred of; ``ANY_NODE`` for none."""
        return int(self.library.EmuNodeOf(address))

    @property
    def call_count(self) -> int:
        """Calls that reserve, commit, decommit or release, so far."""
        return int(self.library.EmuCallCount())

    def fail(self, call: int, code: int, *, lasts: bool = False) -> None:
        """Let a call from now on fail, counted from 1; and all after it."""
        self.library.EmuFail(call, code, int(lasts))

    def recover(self) -> None:
        """Let no call fail any more."""
        self.library.EmuFail(0, 0, 0)


class Without(WindowsCalls):
    """A Windows without a function, or one that refuses it with 5."""

    def __init__(self, name: str, kernel32: Kernel32) -> None:
        super().__init__((kernel32.library,) * 3, kernel32.last_error)
        self._name = name
        self._fail = kernel32.library.SetLastError

    def __contains__(self, name: str) -> bool:
        return name != self._name and super().__contains__(name)

    def __getitem__(self, name: str) -> Callable[..., int]:
        return self._refuse if name == self._name else super().__getitem__(name)

    def _refuse(self, *arguments: object) -> int:
        self._fail(5)
        return 0


def load() -> Kernel32:
    """Return a machine in its first state; there is one, which is reset."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or mmap.PAGESIZE != 4096:
        pytest.skip("kernel32 is emulated on 64-bit Linux with OS pages of 4 KiB")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the emulation of kernel32 needs a C compiler")
    return Kernel32(_build(compiler))


@functools.cache
def _build(compiler: str) -> ctypes.CDLL:
    sources = sorted(str(source) for source in FOLDER.glob("kernel32*.c"))
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/kernel32.so"
        subprocess.run(
            [compiler, *FLAGS, "-o", library, *sources, "-pthread"], check=True
        )
        return ctypes.CDLL(library)


def calls_here() -> WindowsCalls:
    """Return the calls of Windows where the tests run on it, or else emulated ones."""
    return system_calls() if sys.platform == "win32" else load().calls
