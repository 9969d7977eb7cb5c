"""Host memory of Linux: ``mmap`` and its relatives, through ctypes.

A *lazy* reservation is readable and writable from the start and the first touch
commits: no call, no split. A *strict* one is PROT_NONE until it is committed; it is
for kernels and limits that count what is writable, not what is touched.
"""

import ctypes
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from madl.backends import _linux_calls as calls
from madl.backends import _proc
from madl.backends._linux_calls import ALIGNMENT
from madl.errors import OutOfMemoryError

_LOCKING = "mlockall makes all of a lazy reservation resident"


class _Reservation:
    """A range of addresses, and what madl has done to it."""

    commit: Callable[[int, int], None]
    decommit: Callable[[int, int], None]

    def __init__(self, memory: "LinuxMemory", address: int, nbytes: int) -> None:
        self._memory = memory
        self.address = address
        self.nbytes = nbytes
        self._advice = memory.advice
        self._dress(address, nbytes)
        # The kernel keeps lazy addresses as one VMA until memory is moved in them.
        # Every border between two VMAs of them is in this sorted list of offsets.
        self._cuts: list[int] = []

    def _dress(self, address: int, nbytes: int) -> None:
        """Give new VMAs the advice and the name of the others, or they never join."""
        # A kernel without huge pages refuses the advice, and that is well.
        calls.sys_madvise(address, nbytes, self._advice)
        if self._memory.has_names:
            calls.give_name(address, nbytes)

    def release(self) -> None:
        """Give the address space back."""
        calls.unmap(self.address, self.nbytes)
        self._memory.cut_count -= len(self._cuts)

    def _exchange(
        self, source: int, destination: int, nbytes: int, into: "LinuxReservation"
    ) -> None:
        """Let the source go and commit the destination, or change nothing."""
        self.decommit(source, nbytes)
        try:
            into.commit(destination, nbytes)
        except OutOfMemoryError:
            self.commit(source, nbytes)
            raise


class LazyReservation(_Reservation):
    """Readable and writable address space that the first touch commits."""

    def commit(self, offset: int, nbytes: int) -> None:
        """Do nothing: the kernel commits at the first touch."""

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the memory back; the addresses read as zero again."""
        calls.discard(self.address + offset, nbytes)

    def remap(
        self,
        source: int,
        destination: int,
        nbytes: int,
        into: "LinuxReservation | None" = None,
    ) -> None:
        """Move page-table entries; where the kernel will not, let the pages go.

        Lazy addresses are usable whether committed or not, so a failure halfway
        leaves both ranges as they were, but for content, which is not promised.
        """
        target = self if into is None else into
        if not isinstance(target, LazyReservation):
            self._exchange(source, destination, nbytes, target)
            return
        cuts, stop = self._cuts, source + nbytes
        inside = cuts[bisect_right(cuts, source) : bisect_left(cuts, stop)]
        may_move = self._memory.may_move()
        if may_move and inside and self._memory.moves_many:
            borders = [border - source for border in inside]
            if target._receive(self.address + source, destination, nbytes, borders):
                return
            self._memory.moves_many = False  # a kernel before 6.17: one VMA in a call
        for start, end in pairwise((source, *inside, stop)):
            offset = destination + start - source
            address = self.address + start
            if not (may_move and target._receive(address, offset, end - start)):
                target._restore(offset, end - start)
                calls.discard(address, end - start)

    def _receive(
        self, source: int, destination: int, nbytes: int, borders: Sequence[int] = ()
    ) -> bool:
        """Move the memory at an address to an offset; say whether it worked.

        ``borders`` are those between VMAs inside what is moved, from its start.
        """
        target = self.address + destination
        if calls.sys_mremap(source, nbytes, nbytes, calls.MOVE, target) != target:
            return False
        # What was moved keeps its old offset inside the kernel, so it joins no
        # neighbour: its VMAs stay apart, with a border at each end.
        first = bisect_left(self._cuts, destination)
        last = bisect_right(self._cuts, destination + nbytes)
        cuts = [destination + border for border in (0, *borders, nbytes)]
        self._memory.cut_count += len(cuts) - (last - first)
        self._cuts[first:last] = cuts
        return True

    def _restore(self, offset: int, nbytes: int) -> None:
        """Reserve addresses again that a failed ``mremap`` may have unmapped."""
        address = self.address + offset
        # This advice changes nothing, and ENOMEM says that a part is unmapped.
        if calls.sys_madvise(address, nbytes, mmap.MADV_NORMAL) == 0:
            return
        # Another thread may be there by now, and must not lose what it has.
        if (
            calls.sys_mmap(address, nbytes, calls.READ_WRITE, calls.FILL_HOLE, -1, 0)
            != address
        ):
            raise calls.error_of("mmap", "restore", nbytes)
        self._dress(address, nbytes)


class StrictReservation(_Reservation):
    """Address space that cannot be touched before it is committed."""

    def commit(self, offset: int, nbytes: int) -> None:
        """Make the addresses usable, and count them against the limits."""
        if calls.sys_mprotect(self.address + offset, nbytes, calls.READ_WRITE) != 0:
            error = calls.error_of("mprotect", "commit", nbytes, is_refusal=True)
            # Of several VMAs, the first may have been changed before one failed.
            self._seal(offset, nbytes)
            raise error

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give back the memory and, when it can be, what it counts for."""
        if not self._seal(offset, nbytes):
            # It would split a VMA and max_map_count forbids that.
            calls.discard(self.address + offset, nbytes)

    def remap(
        self,
        source: int,
        destination: int,
        nbytes: int,
        into: "LinuxReservation | None" = None,
    ) -> None:
        """Exchange the memory: ``mremap`` counts both."""
        self._exchange(source, destination, nbytes, self if into is None else into)

    def _seal(self, offset: int, nbytes: int) -> bool:
        # mprotect(PROT_NONE) is 4 us faster than this 16, but what was once touched
        # stays counted (measured: 302 MiB of 302); a new mapping frees it all.
        address = self.address + offset
        if (
            calls.sys_mmap(address, nbytes, calls.PROT_NONE, calls.SEAL, -1, 0)
            != address
        ):
            return False
        self._dress(address, nbytes)
        return True


LinuxReservation = LazyReservation | StrictReservation


class LinuxMemory:
    """How this kernel, as it is set up, lets this process have memory."""

    alignment = ALIGNMENT
    commit_refusal = ""
    memory_info = staticmethod(_proc.memory_info)

    def __init__(self, *, is_lazy_allowed: bool = True) -> None:
        is_counted = _proc.is_everything_counted()
        self._is_lazy = is_lazy_allowed and not is_counted
        self._strict_reason = "overcommit mode 2" if is_counted else "by option"
        self.remap_refusal = _probe_move() if self._is_lazy else "commits strictly"
        self.huge_page_nbytes = _proc.huge_page_nbytes()
        self.advice, self._start_multiple = mmap.MADV_NOHUGEPAGE, ALIGNMENT
        """What the kernel is told of reservations from now on, and where they start."""
        self._cut_limit = _proc.most_vmas() // 2
        self.moves_many = True
        """Whether one call may move several VMAs: so until the kernel refuses."""
        self.has_names = _probe_names()
        """Whether this kernel shows names of anonymous memory."""
        self.cut_count = 0
        """Borders between VMAs in all lazy reservations."""

    def choose_pages(self, page_nbytes: int, *, huge: bool | None) -> None:
        """Ask for huge pages where they fit; decline them everywhere else.

        One over several pages of madl is resident where one of those is committed. It
        is declined even under "madvise": sizes have their own modes, and they change.
        """
        is_huge = _proc.choose_huge(page_nbytes, huge)
        self.advice = mmap.MADV_HUGEPAGE if is_huge else mmap.MADV_NOHUGEPAGE
        # 512 MiB on arm64 with OS pages of 64 KiB: no page of madl may share one.
        self._start_multiple = max(ALIGNMENT, self.huge_page_nbytes * is_huge)

    def reserve(self, nbytes: int) -> LinuxReservation:
        """Take address space; strictly where lazily it is refused, or costs memory."""
        start = self._start_multiple
        if self._is_lazy and _is_locking():
            self._strict_reason = _LOCKING
        elif self._is_lazy:
            try:
                address = calls.reserve_addresses(
                    nbytes, calls.READ_WRITE, calls.LAZY, start
                )
            except OutOfMemoryError as error:
                self._strict_reason = f"lazily, {error.report.native}"
            else:
                self._strict_reason = ""
                return LazyReservation(self, address, nbytes)
        address = calls.reserve_addresses(
            nbytes, calls.PROT_NONE, calls.ANONYMOUS, start
        )
        return StrictReservation(self, address, nbytes)

    def may_move(self) -> bool:
        """Whether ``mremap`` is safe now.

        Under a limit lowered below what is in use, it unmaps the destination and then
        fails, and so does mapping it again. And threads and libraries need VMAs too.
        """
        return self.cut_count < self._cut_limit and not _proc.has_limit()

    def describe(self) -> dict[str, str]:
        """Return what was chosen, and why; ``commit`` is of the last reservation."""
        strict = f"strict, by mprotect ({self._strict_reason})"
        advice = {mmap.MADV_HUGEPAGE: "asked for", mmap.MADV_NOHUGEPAGE: "declined"}
        return {
            "commit": strict if self._strict_reason else "lazy, by the first touch",
            "remap": self.remap_refusal or "mremap",
            "huge pages": advice[self.advice],
            "in /proc/self/maps": "named madl" if self.has_names else "without a name",
            **_proc.settings(),
        }


def _is_locking() -> bool:
    """Whether new mappings are locked, by mlockall(MCL_FUTURE).

    Then a lazy reservation is resident at once, all of it. A strict one is not, and
    what is committed of it becomes resident and locked: what the program asked for.
    """
    probe = calls.sys_mmap(0, mmap.PAGESIZE, calls.PROT_NONE, calls.ANONYMOUS, -1, 0)
    if probe == calls.FAILED:
        return True  # for the same reason: more than may be locked
    is_locked = calls.sys_madvise(probe, mmap.PAGESIZE, mmap.MADV_DONTNEED) != 0
    calls.sys_munmap(probe, mmap.PAGESIZE)
    return is_locked


def _probe_names() -> bool:
    """Return whether memory can have a name: Linux 5.17, if built so, and Android."""
    probe = calls.sys_mmap(0, mmap.PAGESIZE, calls.PROT_NONE, calls.ANONYMOUS, -1, 0)
    if probe == calls.FAILED:
        return False
    is_named = calls.give_name(probe, mmap.PAGESIZE)
    calls.sys_munmap(probe, mmap.PAGESIZE)
    return is_named


def _probe_move() -> str:
    """Return why memory cannot be moved, or nothing when it can.

    Needs MREMAP_DONTUNMAP (Linux 5.7). Without it the source is a hole until it is
    mapped again, and another thread's ``mmap`` got into it after 317 moves.
    """
    if _proc.has_limit():
        return "RLIMIT_AS or RLIMIT_DATA is set"
    if _is_locking():
        return _LOCKING
    source = calls.reserve_addresses(2 * mmap.PAGESIZE, calls.READ_WRITE, calls.LAZY)
    target = source + mmap.PAGESIZE
    ctypes.memset(source, 1, 1)
    moved = calls.sys_mremap(source, mmap.PAGESIZE, mmap.PAGESIZE, calls.MOVE, target)
    refusal = "" if moved == target else f"mremap: {os.strerror(ctypes.get_errno())}"
    calls.unmap(source, 2 * mmap.PAGESIZE)
    return refusal
