"""The emulated C libraries, as tests steer them."""

import ctypes
import errno
import subprocess
from pathlib import Path

from madl.backends.host import HostMemory
from madl.backends.host.android import AndroidMemory
from madl.backends.host.bsd import BsdMemory
from madl.backends.host.darwin import DarwinMemory

SOURCE = Path(__file__).with_name("posix.c")
OS_PAGES = {
    "android": 16384,
    "freebsd": 4096,
    "macos": 16384,
    "netbsd": 4096,
    "openbsd": 4096,
}


def build(folder: Path) -> ctypes.CDLL:
    """Compile the emulation."""
    library = folder / "libposix.so"
    warnings = ("-Wall", "-Wextra", "-Werror")
    subprocess.run(
        ["gcc", "-O1", *warnings, "-shared", "-fPIC", "-o", library, SOURCE], check=True
    )
    return ctypes.CDLL(str(library), use_errno=True)


class Posix:
    """One system, freshly started."""

    def __init__(self, library: ctypes.CDLL, system: str) -> None:
        self.library = library
        self.system = system
        for name in ("discarded", "mapped", "usable"):
            getattr(library, f"emulated_{name}").restype = ctypes.c_size_t
        library.emulate.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        library.emulated_limit_commit.argtypes = (ctypes.c_size_t,)
        library.emulated_fail.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_long)
        library.emulated_tag.argtypes = (ctypes.c_size_t,)
        library.emulate(system.encode(), OS_PAGES[system])

    def fail(self, call: int, code: int = errno.ENOMEM, *, count: int = 1) -> None:
        """Let calls fail, the first of them counted from the next one."""
        self.library.emulated_fail(call, code, count)

    def recover(self) -> None:
        """Let no call fail any more."""
        self.library.emulated_fail(0, 0, 0)

    def limit_commit(self, nbytes: int) -> None:
        """Refuse to make more usable than that."""
        self.library.emulated_limit_commit(nbytes)

    def limit_ranges(self, count: int) -> None:
        """Refuse to split what is mapped into more than so many ranges."""
        self.library.emulated_limit_ranges(ctypes.c_size_t(count))

    def tag(self, bits: int) -> None:
        """Give addresses these bits, at the top."""
        self.library.emulated_tag(bits)

    def forgive(self) -> None:
        """Forget the misuses that a test wanted."""
        self.library.emulated_forgive()

    @property
    def misuses(self) -> int:
        """How many calls the system's own rules forbid."""
        return int(self.library.emulated_misuses())

    @property
    def names(self) -> int:
        """How many ranges were given a name."""
        return int(self.library.emulated_names())

    @property
    def calls(self) -> int:
        """How many calls that change memory were made."""
        return int(self.library.emulated_calls())

    @property
    def discarded_nbytes(self) -> int:
        """Bytes given back by Linux's MADV_DONTNEED."""
        return int(self.library.emulated_discarded())

    @property
    def mapped_nbytes(self) -> int:
        """Bytes of address space in use."""
        return int(self.library.emulated_mapped())

    @property
    def usable_nbytes(self) -> int:
        """Bytes that can be read and written, and were not given back by advice."""
        return int(self.library.emulated_usable())


def open_memory(posix: Posix) -> HostMemory:
    """Return what a system's module makes of it."""
    if posix.system == "android":
        return AndroidMemory()
    if posix.system == "macos":
        return DarwinMemory(_library=posix.library)
    return BsdMemory(_library=posix.library, _system=f"{posix.system}9")
