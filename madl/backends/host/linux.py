"""Host memory of Linux: ``mmap`` and its relatives, through ctypes.

What this kernel can do, as it is set up, is found out here, by trying; what is done
with it is in ``linux_reservations``.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import partial

from madl.backends.host import cannot_choose, proc
from madl.backends.host import linux_calls as calls
from madl.backends.host.linux_calls import ALIGNMENT
from madl.backends.host.linux_reservations import (
    Choices,
    ExplicitReservation,
    LazyReservation,
    LinuxReservation,
    StrictReservation,
)
from madl.backends.protocol import HugePages, MemoryInfo
from madl.errors import NativeFailure, OutOfMemoryError
from madl.sizes import format_nbytes

_LOCKING = "mlockall makes all of a lazy reservation resident"


class LinuxMemory(Choices):
    """How this kernel, as it is set up, lets this process have memory."""

    def __init__(self, *, is_lazy_allowed: bool = True) -> None:
        super().__init__()
        is_counted = proc.is_everything_counted()
        self._is_lazy = is_lazy_allowed and not is_counted
        self._strict_reason = "overcommit mode 2" if is_counted else "by option"
        self.remap_refusal = _probe_move() if self._is_lazy else "commits strictly"
        self.numa_refusal = self._find_numa_refusal()
        self.huge_page_nbytes = proc.huge_page_nbytes() or proc.explicit_page_nbytes()
        # Linux 5.17, if built so, and Android.
        self.has_names = _try_on_os_page(calls.give_name)
        self._start_multiple = ALIGNMENT  # of reservations from now on
        self._explicit_nbytes = 0  # of a huge page for them, where that is explicit
        self._page_nbytes = 0  # of the pool

    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        """Ask for huge pages where they fit; decline them everywhere else.

        One over several pages of madl is resident where one of those is committed. It
        is declined even under "madvise": sizes have their own modes, and they change.
        """
        explicit_nbytes, is_huge, collapses = 0, False, False
        if huge == "explicit":
            explicit_nbytes = _explicit_nbytes_for(page_nbytes)
        else:
            collapses = self.is_prefaulting and huge is True and _may_collapse()
            is_huge = proc.choose_huge(page_nbytes, huge, modes_matter=not collapses)
        self.advice = mmap.MADV_HUGEPAGE if is_huge else mmap.MADV_NOHUGEPAGE
        # 512 MiB on arm64 with OS pages of 64 KiB: no page of madl may share one.
        huge_nbytes = explicit_nbytes or proc.huge_page_nbytes() * is_huge
        self._start_multiple = max(ALIGNMENT, huge_nbytes)
        self._explicit_nbytes, self._page_nbytes = explicit_nbytes, page_nbytes
        if collapses:
            self.fault_in = partial(calls.collapse, huge_nbytes=huge_nbytes)
        else:
            self._fault_in_as_usual()

    def choose_prefault(self, *, prefault: bool) -> None:
        """Fault in from now on what is committed, or wait for the first touch."""
        super().choose_prefault(prefault=prefault)
        self._fault_in_as_usual()

    def _fault_in_as_usual(self) -> None:
        if not self.is_prefaulting:
            self.fault_in = None
        elif _try_on_pages(mmap.PAGESIZE, calls.populate):
            self.fault_in = calls.populate
        else:
            self.fault_in = calls.touch

    def choose_guard_pages(self) -> None:
        """Commit strictly from now on: nothing else can be touched then."""
        if self._is_lazy:
            self._is_lazy, self._strict_reason = False, "guard pages"

    def choose_node(self, node: int | None) -> None:
        """Take memory of one NUMA node from now on, while it has any."""
        super().choose_node(node)
        prefer = None
        if node is not None:
            from madl.backends.host import linux_numa

            prefer = linux_numa.prefer_from_now_on(node)
        self.node, self.prefer_node = node, prefer

    def reserve(self, nbytes: int) -> LinuxReservation:
        """Take address space; strictly where lazily it is refused, or costs memory."""
        start = self._start_multiple
        # What is of no whole pages is for one block, and huge pages do not fit it.
        is_explicit = self._explicit_nbytes and nbytes % self._page_nbytes == 0
        if is_explicit:
            self._strict_reason = "explicit huge pages"
        elif self._is_lazy and _is_locking():
            self._strict_reason = _LOCKING
        elif self._is_lazy:
            try:
                address = calls.system.reserve(
                    nbytes, calls.READ_WRITE, calls.LAZY, start
                )
            except OutOfMemoryError as error:
                self._strict_reason = f"lazily, {error.report.native}"
            else:
                self._strict_reason = ""
                return LazyReservation(self, address, nbytes)
        address = calls.system.reserve(nbytes, calls.PROT_NONE, calls.ANONYMOUS, start)
        if is_explicit:
            return ExplicitReservation(self, address, nbytes, self._explicit_nbytes)
        return StrictReservation(self, address, nbytes)

    def memory_info(self) -> MemoryInfo:
        """Return this machine's memory, or what its cgroups leave to the process."""
        return proc.memory_info()

    def describe(self) -> dict[str, str]:
        """Return what was chosen, and why; ``commit`` is of the last reservation."""
        how = "mmap" if self._explicit_nbytes else "mprotect"
        strict = f"strict, by {how} ({self._strict_reason})"
        advised = "asked for" if self.advice == mmap.MADV_HUGEPAGE else "declined"
        explicit = f"explicit, {format_nbytes(self._explicit_nbytes)}"
        return {
            "commit": strict if self._strict_reason else "lazy, by the first touch",
            "remap": self.remap_refusal or "mremap",
            "huge pages": explicit if self._explicit_nbytes else advised,
            "prefault": self._describe_prefault(),
            "NUMA": self._describe_node(),
            "in /proc/self/maps": "named madl" if self.has_names else "without a name",
            **proc.settings(),
        }

    @staticmethod
    def _find_numa_refusal() -> str:
        from madl.backends.host import linux_numa

        return linux_numa.refusal()

    def _describe_prefault(self) -> str:
        if self.fault_in is None:
            return "not asked for"
        if self.fault_in is calls.touch:
            return "by writing"
        is_advice = self.fault_in is calls.populate
        return "MADV_POPULATE_WRITE" if is_advice else "MADV_COLLAPSE"


def _explicit_nbytes_for(page_nbytes: int) -> int:
    """Return the size of the huge pages that are set aside, after taking one.

    Raises:
        MissingCapabilityError: None can be had, or they fit no page of the pool.
    """
    huge_nbytes = proc.explicit_page_nbytes()
    proc.check_huge(page_nbytes, huge_nbytes, "explicit huge pages")
    if calls.map_explicit(0, huge_nbytes):
        return huge_nbytes
    code = ctypes.get_errno()
    native = NativeFailure("mmap", code, os.strerror(code))
    size, stock = format_nbytes(huge_nbytes), proc.explicit_stock()
    raise cannot_choose(
        "huge_pages",
        f"explicit huge pages of {size} ({native}; {stock})",
        "set more aside with 'sysctl vm.nr_hugepages=N', or ",
    )


def _may_collapse() -> bool:
    """Whether a call makes huge pages where the mode for them is "never"."""
    huge_nbytes = proc.huge_page_nbytes()
    is_never = huge_nbytes > 0 and proc.huge_page_mode() == "never"
    return is_never and _try_on_pages(huge_nbytes, calls.make_huge)


def _try_on_pages(nbytes: int, call: Callable[[int, int], bool]) -> bool:
    try:
        trial = calls.system.reserve(nbytes, calls.READ_WRITE, calls.LAZY, nbytes)
    except OutOfMemoryError:
        return False
    try:
        return call(trial, nbytes)
    finally:
        calls.system.unmap(trial, nbytes)


def _try_on_os_page(call: Callable[[int, int], bool]) -> bool:
    """Return what a call says of an OS page that cannot be touched."""
    probe = calls.system.mmap(0, mmap.PAGESIZE, calls.PROT_NONE, calls.ANONYMOUS, -1, 0)
    if probe == calls.FAILED:
        return False
    try:
        return call(probe, mmap.PAGESIZE)
    finally:
        calls.system.munmap(probe, mmap.PAGESIZE)


def _is_locking() -> bool:
    """Whether new mappings are locked, by mlockall(MCL_FUTURE).

    Then a lazy reservation is resident at once, all of it. A strict one is not, and
    what is committed of it becomes resident and locked: what the program asked for.
    """
    # A probe that is refused is so for the same reason: more than may be locked.
    return not _try_on_os_page(
        lambda probe, nbytes: (
            calls.system.madvise(probe, nbytes, mmap.MADV_DONTNEED) == 0
        )
    )


def _probe_move() -> str:
    """Return why memory cannot be moved, or nothing when it can.

    Needs MREMAP_DONTUNMAP (Linux 5.7). Without it the source is a hole until it is
    mapped again, and another thread's ``mmap`` got into it after 317 moves.
    """
    if proc.has_limit():
        return "RLIMIT_AS or RLIMIT_DATA is set"
    if _is_locking():
        return _LOCKING
    source = calls.system.reserve(2 * mmap.PAGESIZE, calls.READ_WRITE, calls.LAZY)
    target = source + mmap.PAGESIZE
    ctypes.memset(source, 1, 1)
    moved = calls.system.mremap(
        source, mmap.PAGESIZE, mmap.PAGESIZE, calls.MOVE, target
    )
    refusal = "" if moved == target else f"mremap: {os.strerror(ctypes.get_errno())}"
    calls.system.unmap(source, 2 * mmap.PAGESIZE)
    return refusal
