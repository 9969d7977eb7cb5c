"""Host memory of Linux: ``mmap`` and its relatives, through ctypes.

A *lazy* reservation is readable and writable from the start and the first touch
commits: no call, no split. A *strict* one is PROT_NONE until it is committed; it is
for kernels and limits that count what is writable, not what is touched.
"""

import ctypes
import errno
import mmap
import os
import resource
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from madl.errors import (
    BackendCallError,
    MadlError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.sizes import ADDRESS_SPACE_NBYTES, align_up, format_nbytes

ALIGNMENT = 2 << 20  # the huge page of x86, and of arm64 with OS pages of 4 KiB

_PROT_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
# Python's mmap module has MAP_NORESERVE from 3.13, and never the others. It is the
# only one that differs between architectures.
_ODD_NORESERVE = {"alp": 0x10000, "mip": 0x400, "ppc": 0x40, "spa": 0x40}
_LAZY = _ANONYMOUS | _ODD_NORESERVE.get(os.uname().machine[:3], 0x4000)
_MAP_FIXED, _MAP_FIXED_NOREPLACE = 0x10, 0x100000
_MOVE = 1 | 2 | 4  # MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
_FAILED = ADDRESS_SPACE_NBYTES - 1
_OUT_OF_MEMORY = (errno.ENOMEM, errno.EAGAIN)  # EAGAIN: more than may be locked
_AS, _DATA = resource.RLIMIT_AS, resource.RLIMIT_DATA
_DEVICE = "cpu"
_THP = Path("/sys/kernel/mm/transparent_hugepage")
_VM = Path("/proc/sys/vm")

_libc = ctypes.CDLL(None, use_errno=True)


def _declare(name: str, result: type, *arguments: type) -> Callable[..., int]:
    function = getattr(_libc, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # getattr of a CDLL is Any


# Addresses are size_t: unsigned, and an int even where a pointer would be None.
_ADDRESS, _NBYTES, _INT = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
_mmap = _declare(
    # 32-bit glibc and bionic give mmap a 32-bit off_t; musl's is 64 bits always.
    "mmap64" if hasattr(_libc, "mmap64") else "mmap",
    *(_ADDRESS, _ADDRESS, _NBYTES, _INT, _INT, _INT, ctypes.c_int64),
)
_munmap = _declare("munmap", _INT, _ADDRESS, _NBYTES)
_mprotect = _declare("mprotect", _INT, _ADDRESS, _NBYTES, _INT)
_madvise = _declare("madvise", _INT, _ADDRESS, _NBYTES, _INT)
_mremap = _declare("mremap", _ADDRESS, _ADDRESS, _NBYTES, _NBYTES, _INT, _ADDRESS)


def _error(
    function: str, verb: str, nbytes: int, *, is_refusal: bool = False
) -> MadlError:
    code = ctypes.get_errno()
    native = NativeFailure(function, code, os.strerror(code))
    if is_refusal and code in _OUT_OF_MEMORY:
        report = OutOfMemoryReport(_DEVICE, nbytes, nbytes, native=native)
        return OutOfMemoryError(report)
    return BackendCallError(_DEVICE, f"{verb} {format_nbytes(nbytes)}", native)


def _unmap(address: int, nbytes: int) -> None:
    if nbytes and _munmap(address, nbytes) != 0:
        raise _error("munmap", "release", nbytes)


def _discard(address: int, nbytes: int) -> None:
    if _madvise(address, nbytes, mmap.MADV_DONTNEED) != 0:
        raise _error("madvise", "decommit", nbytes)


def _reserve(nbytes: int, protection: int, flags: int) -> int:
    """Return the address of a new aligned reservation."""
    # ctypes passes a number beyond the address space on without its upper bits.
    asked = min(nbytes + ALIGNMENT, ADDRESS_SPACE_NBYTES) - mmap.PAGESIZE
    start = _mmap(0, asked, protection, flags, -1, 0)
    if start == _FAILED:
        raise _error("mmap", "reserve", nbytes, is_refusal=True)
    end = start + asked
    address = align_up(start, ALIGNMENT)
    try:
        _unmap(address + nbytes, end - address - nbytes)
        end = address + nbytes
        _unmap(start, address - start)
    except BackendCallError:
        _munmap(start, end - start)
        raise
    return address


class _Reservation:
    def __init__(self, memory: "LinuxMemory", address: int, nbytes: int) -> None:
        self._memory = memory
        self.address = address
        self.nbytes = nbytes
        memory.advise(address, nbytes)
        # The kernel keeps lazy addresses as one VMA until memory is moved in them.
        # Every border between two VMAs of them is in this sorted list of offsets.
        self._cuts: list[int] = []

    def release(self) -> None:
        """Give the address space back."""
        _unmap(self.address, self.nbytes)
        self._memory.cut_count -= len(self._cuts)


class LazyReservation(_Reservation):
    """Readable and writable address space that the first touch commits."""

    def commit(self, offset: int, nbytes: int) -> None:
        """Do nothing: the kernel commits at the first touch."""

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the memory back; the addresses read as zero again."""
        _discard(self.address + offset, nbytes)

    def remap(self, source: int, destination: int, nbytes: int) -> None:
        """Move page-table entries; where the kernel will not, let the pages go.

        Lazy addresses are usable whether committed or not, so a failure halfway
        leaves both ranges as they were, but for content, which is not promised.
        """
        stop = source + nbytes
        inside = slice(bisect_right(self._cuts, source), bisect_left(self._cuts, stop))
        may_move = self._memory.may_move()
        # Kernels before 6.17 move no more than one VMA in a call.
        for start, end in pairwise([source, *self._cuts[inside], stop]):
            target = destination + start - source
            if not (may_move and self._move(start, target, end - start)):
                self._restore(target, end - start)
                _discard(self.address + start, end - start)

    def _move(self, source: int, destination: int, nbytes: int) -> bool:
        target = self.address + destination
        if _mremap(self.address + source, nbytes, nbytes, _MOVE, target) != target:
            return False
        # What was moved keeps its old offset inside the kernel, so it joins no
        # neighbour: it is one VMA, with a border at each end.
        first = bisect_left(self._cuts, destination)
        last = bisect_right(self._cuts, destination + nbytes)
        self._memory.cut_count += 2 - (last - first)
        self._cuts[first:last] = destination, destination + nbytes
        return True

    def _restore(self, offset: int, nbytes: int) -> None:
        """Reserve addresses again that a failed ``mremap`` may have unmapped."""
        address = self.address + offset
        # This advice changes nothing, and ENOMEM says that a part is unmapped.
        if _madvise(address, nbytes, mmap.MADV_NORMAL) == 0:
            return
        flags = _LAZY | _MAP_FIXED_NOREPLACE  # another thread may be there by now
        if _mmap(address, nbytes, _READ_WRITE, flags, -1, 0) != address:
            raise _error("mmap", "restore", nbytes)
        self._memory.advise(address, nbytes)


class StrictReservation(_Reservation):
    """Address space that cannot be touched before it is committed."""

    def commit(self, offset: int, nbytes: int) -> None:
        """Make the addresses usable, and count them against the limits."""
        if _mprotect(self.address + offset, nbytes, _READ_WRITE) != 0:
            error = _error("mprotect", "commit", nbytes, is_refusal=True)
            # Of several VMAs, the first may have been changed before one failed.
            self._seal(offset, nbytes)
            raise error

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give back the memory and, when it can be, what it counts for."""
        if not self._seal(offset, nbytes):
            # It would split a VMA and max_map_count forbids that.
            _discard(self.address + offset, nbytes)

    def remap(self, source: int, destination: int, nbytes: int) -> None:
        """Let the source go and commit the destination: ``mremap`` counts both."""
        self.decommit(source, nbytes)
        try:
            self.commit(destination, nbytes)
        except OutOfMemoryError:
            self.commit(source, nbytes)
            raise

    def _seal(self, offset: int, nbytes: int) -> bool:
        # mprotect(PROT_NONE) is 4 us faster than this 16, but what was once touched
        # stays counted (measured: 302 MiB of 302); a new mapping frees it all.
        address = self.address + offset
        flags = _ANONYMOUS | _MAP_FIXED
        if _mmap(address, nbytes, _PROT_NONE, flags, -1, 0) != address:
            return False
        self._memory.advise(address, nbytes)
        return True


class LinuxMemory:
    """How this kernel, as it is set up, lets this process have memory."""

    alignment = ALIGNMENT

    def __init__(
        self, *, page_nbytes: int, huge_pages: bool, is_lazy_allowed: bool = True
    ) -> None:
        is_counted = _read(_VM / "overcommit_memory") == "2"  # all that is writable
        self._is_lazy = is_lazy_allowed and not is_counted
        self._strict_reason = "overcommit mode 2" if is_counted else "by option"
        self.remap_refusal = _probe_move() if self._is_lazy else "commits strictly"
        """Why memory cannot move inside a reservation; empty when it can."""
        self._advice = _huge_page_advice(page_nbytes, huge_pages)
        self._cut_limit = int(_read(_VM / "max_map_count") or 65530) // 2
        self.cut_count = 0
        """Borders between VMAs in all lazy reservations."""

    def reserve(self, nbytes: int) -> LazyReservation | StrictReservation:
        """Take address space; strictly where the kernel refuses it lazily."""
        if self._is_lazy:
            try:
                lazy = LazyReservation(
                    self, _reserve(nbytes, _READ_WRITE, _LAZY), nbytes
                )
            except OutOfMemoryError as error:
                self._strict_reason = f"lazily, {error.report.native}"
            else:
                self._strict_reason = ""
                return lazy
        return StrictReservation(self, _reserve(nbytes, _PROT_NONE, _ANONYMOUS), nbytes)

    def may_move(self) -> bool:
        """Whether ``mremap`` is safe now.

        Under a limit lowered below what is in use, it unmaps the destination and then
        fails, and so does mapping it again. And threads and libraries need VMAs too.
        """
        return self.cut_count < self._cut_limit and not _has_limit()

    def advise(self, address: int, nbytes: int) -> None:
        """Ask for huge pages, or for none; a kernel without them may refuse."""
        if self._advice is not None:
            _madvise(address, nbytes, self._advice)

    def describe(self) -> dict[str, str]:
        """Return what was chosen, and why; ``commit`` is of the last reservation."""
        strict = f"strict, by mprotect ({self._strict_reason})"
        advice = {mmap.MADV_HUGEPAGE: "asked for", mmap.MADV_NOHUGEPAGE: "declined"}
        return {
            "commit": strict if self._strict_reason else "lazy, by the first touch",
            "remap": self.remap_refusal or "mremap",
            "huge pages": advice.get(self._advice or 0, "left to the kernel"),
        }


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _has_limit() -> bool:
    limits = resource.getrlimit(_AS)[0], resource.getrlimit(_DATA)[0]
    return limits != (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def _huge_page_advice(page_nbytes: int, huge_pages: bool) -> int | None:
    huge_nbytes = int(_read(_THP / "hpage_pmd_size") or 0)
    if huge_pages and huge_nbytes and page_nbytes % huge_nbytes == 0:
        return mmap.MADV_HUGEPAGE
    # A huge page over several pages of madl would be resident where one of them is
    # committed and the others are not.
    return mmap.MADV_NOHUGEPAGE if "[always]" in _read(_THP / "enabled") else None


def _probe_move() -> str:
    """Return why memory cannot be moved, or nothing when it can.

    Needs MREMAP_DONTUNMAP (Linux 5.7). Without it the source is a hole until it is
    mapped again, and another thread's ``mmap`` got into it after 317 moves.
    """
    if _has_limit():
        return "RLIMIT_AS or RLIMIT_DATA is set"
    source = _reserve(2 * mmap.PAGESIZE, _READ_WRITE, _LAZY)
    target = source + mmap.PAGESIZE
    ctypes.memset(source, 1, 1)
    moved = _mremap(source, mmap.PAGESIZE, mmap.PAGESIZE, _MOVE, target)
    refusal = "" if moved == target else f"mremap: {os.strerror(ctypes.get_errno())}"
    _unmap(source, 2 * mmap.PAGESIZE)
    return refusal
