"""Host memory of FreeBSD, NetBSD, OpenBSD and DragonFly, through ctypes.

Their numbers are not Linux's: ``madvise`` of 8 frees on Linux, and on FreeBSD it only
keeps the memory out of core dumps, without an error.
"""

import ctypes
import mmap
import os
import re
import sys

from madl.backends.host import posix_calls as posix
from madl.backends.host.posix import MapFlags, PosixMemory, declare_sysctl
from madl.backends.protocol import MemoryInfo

_PRIVATE, _ANON = 0x2, 0x1000
_ANONYMOUS = _PRIVATE | _ANON
# FreeBSD has no MAP_NORESERVE, and its 0x40 means nothing; OpenBSD's is 0.
_FLAGS = {
    "dragonfly": MapFlags(_ANONYMOUS, reserving=0),
    "freebsd": MapFlags(_ANONYMOUS, reserving=0),
    "netbsd": MapFlags(_ANONYMOUS, reserving=0x40),
    "openbsd": MapFlags(_ANONYMOUS, reserving=0),
}
# OS pages that are free, or that the system can reclaim without writing them.
_FREE_COUNTS = b"vm.stats.vm.v_free_count", b"vm.stats.vm.v_inactive_count"


class BsdMemory(PosixMemory):
    """Memory of one of the BSDs; committed by ``mprotect``, let go by ``mmap``."""

    def __init__(
        self, *, _library: ctypes.CDLL | None = None, _system: str = sys.platform
    ) -> None:
        library = _library or ctypes.CDLL(None, use_errno=True)
        self._system = re.sub(r"\d+$", "", _system)
        super().__init__(posix.PosixCalls(library), _FLAGS[self._system])
        self._library = library

    def memory_info(self) -> MemoryInfo:
        """Return the machine's memory."""
        total = os.sysconf("SC_PHYS_PAGES")
        if self._system in ("dragonfly", "freebsd"):
            available = sum(self._read_count(name) for name in _FREE_COUNTS)
        else:
            available = os.sysconf("SC_AVPHYS_PAGES")
        return MemoryInfo(total * mmap.PAGESIZE, min(available, total) * mmap.PAGESIZE)

    def describe(self) -> dict[str, str]:
        """Return what was chosen for this system."""
        return {
            "commit": "strict, by mprotect",
            "remap": self.remap_refusal,
            "huge pages": "as the system chooses",
        }

    def _read_count(self, name: bytes) -> int:
        """Return an unsigned number of the kernel; 0 where it has no such number."""
        value = ctypes.c_uint()
        nbytes = ctypes.c_size_t(ctypes.sizeof(value))
        read = declare_sysctl(self._library)
        done = read(name, ctypes.byref(value), ctypes.byref(nbytes), None, 0)
        return value.value if done == 0 else 0
