"""Host memory of macOS and iOS, through ctypes.

The system lends more than it has, so a reservation is readable and writable from the
start. Memory goes back by MADV_FREE_REUSABLE, and is announced again by
MADV_FREE_REUSE; the system then neither counts it nor keeps it. Linux's number for
freeing, 8, is that second advice here: it would free nothing, without an error.
"""

import ctypes
import mmap

from madl.backends.host import DEVICE
from madl.backends.host import posix_calls as posix
from madl.backends.host.posix import (
    MapFlags,
    PosixMemory,
    PosixReservation,
    declare_sysctl,
)
from madl.backends.host.posix_calls import INT, READ_WRITE, declare
from madl.backends.protocol import MemoryInfo
from madl.errors import BackendCallError, NativeFailure

_PRIVATE, _NORESERVE, _ANON = 0x2, 0x40, 0x1000
_FREE_REUSABLE, _FREE_REUSE = 7, 8
_FLAGS = MapFlags(_PRIVATE | _ANON, _NORESERVE)
_HOST_VM_INFO64 = 4
_KERN_SUCCESS = 0
_UINT, _UINT64 = ctypes.c_uint, ctypes.c_uint64


class _VmStatistics(ctypes.Structure):
    """``vm_statistics64``: OS pages of the machine by what they are used for."""

    _fields_ = (
        ("free", _UINT),
        ("active", _UINT),
        ("inactive", _UINT),
        ("wired", _UINT),
        ("events", _UINT64 * 9),
        ("purgeable", _UINT),
        ("speculative", _UINT),
        ("traffic", _UINT64 * 4),
        ("compressor", _UINT),
        ("throttled", _UINT),
        ("external", _UINT),
        ("internal", _UINT),
        ("uncompressed", _UINT64),
    )


class DarwinReservation(PosixReservation):
    """Readable and writable address space that the first touch commits."""

    _memory: "DarwinMemory"
    _has_reusable = False  # whether memory of it was ever given back by advice

    def commit(self, offset: int, nbytes: int) -> None:
        """Announce that the addresses are used again, once any were given back."""
        address = self._place(offset, nbytes)
        advise = self._calls.madvise
        if self._has_reusable and advise(address, nbytes, _FREE_REUSE) != 0:
            # Unannounced, what is touched would be missing in the process's footprint:
            # map it anew.
            self._renew(address, nbytes, "commit", is_refusal=True)
        self._prefault(address, nbytes)

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the memory back; what the addresses read is undefined until then."""
        address = self._place(offset, nbytes)
        advise, is_known = self._calls.madvise, self._memory.has_reusable
        if is_known and advise(address, nbytes, _FREE_REUSABLE) == 0:
            self._has_reusable = True
        else:  # the kernel refuses it for what a fork shares, or what is wired
            self._renew(address, nbytes, "decommit")

    def _renew(
        self, address: int, nbytes: int, verb: str, *, is_refusal: bool = False
    ) -> None:
        if not self._replace(address, nbytes, READ_WRITE):
            raise posix.error_of("mmap", verb, nbytes, is_refusal=is_refusal)


class DarwinMemory(PosixMemory):
    """What this system lets the process have."""

    _has_guard_pages = False

    def __init__(self, *, _library: ctypes.CDLL | None = None) -> None:
        library = _library or ctypes.CDLL(None, use_errno=True)
        super().__init__(posix.PosixCalls(library), _FLAGS)
        self._sysctl = declare_sysctl(library)
        self._statistics = declare(
            library,
            "host_statistics64",
            *(INT, _UINT, INT, ctypes.c_void_p, ctypes.POINTER(_UINT)),
        )
        self._host = declare(library, "mach_host_self", _UINT)()
        self.has_reusable = False
        self.has_reusable = self._probe_reusable()
        """Whether the kernel takes memory back by MADV_FREE_REUSABLE."""

    def choose_guard_pages(self) -> None:
        """Allow access to what is committed only, from now on."""
        self._has_guard_pages = True

    def reserve(self, nbytes: int) -> PosixReservation:
        """Take address space, accessible from the start, or once it is committed."""
        if self._has_guard_pages:
            return super().reserve(nbytes)
        return DarwinReservation(self, self._take(nbytes, READ_WRITE), nbytes)

    def memory_info(self) -> MemoryInfo:
        """Return the machine's memory; inactive OS pages are there for the asking."""
        total = _UINT64()
        nbytes = ctypes.c_size_t(ctypes.sizeof(total))
        if self._sysctl(b"hw.memsize", ctypes.byref(total), nbytes, None, 0) != 0:
            raise posix.error_of("sysctlbyname", "read hw.memsize in", nbytes.value)
        found = _VmStatistics()
        count = _UINT(ctypes.sizeof(found) // ctypes.sizeof(INT))
        place = ctypes.addressof(found)
        code = self._statistics(self._host, _HOST_VM_INFO64, place, count)
        if code != _KERN_SUCCESS:
            native = NativeFailure("host_statistics64", code, "kern_return_t")
            raise BackendCallError(DEVICE, "read what is in use", native)
        pages = found.free + found.inactive + found.purgeable
        return MemoryInfo(total.value, min(pages * mmap.PAGESIZE, total.value))

    def describe(self) -> dict[str, str]:
        """Return what was chosen for this system, and why."""
        reusable = "MADV_FREE_REUSABLE" if self.has_reusable else "a new mapping"
        return {
            "commit": "lazy, by the first touch",
            "decommit": f"by {reusable}",
            "remap": self.remap_refusal,
            "huge pages": "none: VM_FLAGS_SUPERPAGE_* has no effect in current systems",
        }

    def _probe_reusable(self) -> bool:
        probe = self.reserve(mmap.PAGESIZE)
        ctypes.memset(probe.address, 1, 1)
        advise = self.calls.madvise
        is_taken = advise(probe.address, probe.nbytes, _FREE_REUSABLE) == 0
        is_reused = advise(probe.address, probe.nbytes, _FREE_REUSE) == 0
        probe.release()
        return is_taken and is_reused
