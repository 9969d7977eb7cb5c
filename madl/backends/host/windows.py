"""Host memory of Windows: ``VirtualAlloc`` and its relatives, through ctypes.

The system has two steps, as madl has: reserving takes addresses only, and a commit is
promised in full or refused, so there is nothing to choose but large pages.
"""

import ctypes
from collections.abc import Iterator
from ctypes import byref, sizeof

from madl.backends.host import HostMemory, cannot_choose
from madl.backends.host import windows_calls as windows
from madl.backends.host.windows_calls import WindowsCalls
from madl.backends.host.windows_reservations import (
    WindowsReservation,
    reserve_large,
    reserve_small,
)
from madl.backends.protocol import HugePages, MemoryInfo
from madl.errors import BackendCallError, OutOfMemoryError
from madl.sizes import format_nbytes

_PRIVILEGE = "SeLockMemoryPrivilege"


class WindowsMemory(HostMemory):
    """How this Windows, as it is set up, lets this process have memory."""

    remap_refusal = "Windows moves no memory between addresses"

    def __init__(self, *, _calls: WindowsCalls | None = None) -> None:
        self._calls = windows.system_calls() if _calls is None else _calls
        system = windows.SystemInfo()
        self._calls["GetSystemInfo"](byref(system))
        self.alignment = int(system.dwAllocationGranularity)
        self.huge_page_nbytes = self._calls["GetLargePageMinimum"]()
        self._large_nbytes = 0  # the page of large reservations; 0 for small ones
        has_nodes = "VirtualAllocExNuma" in self._calls
        self.numa_refusal = "" if has_nodes else "this Windows has no call for it"

    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        """Take large pages when they are asked for, and never on its own accord.

        They are never paged out, and only a user whom the
        administrator trusts may have them.
        """
        if huge:
            self._check_large(page_nbytes)
        self._large_nbytes = page_nbytes if huge else 0

    def _check_large(self, page_nbytes: int) -> None:
        option = "huge_pages"
        if self.huge_page_nbytes == 0 or page_nbytes % self.huge_page_nbytes:
            missing = f"huge pages for pages of {format_nbytes(page_nbytes)}"
            large = format_nbytes(self.huge_page_nbytes)
            instead = f"page_size='{large}', or " if self.huge_page_nbytes else ""
            raise cannot_choose(option, missing, instead)
        if refusal := self._large_page_refusal():
            instead = "grant the right to lock pages in memory and sign in again, or "
            raise cannot_choose(option, f"huge pages ({refusal})", instead)

    def choose_node(self, node: int | None) -> None:
        """Take memory of one NUMA node from now on, while it has any."""
        super().choose_node(node)
        highest, ask = ctypes.c_uint32(), "GetNumaHighestNodeNumber"
        if node is not None and not self._calls[ask](byref(highest)):
            missing = f"NUMA nodes ({self._calls.failure(ask)})"
            raise cannot_choose("numa_node", missing)
        if node is not None and node > highest.value:
            missing = f"NUMA node {node}; the highest is {highest.value}"
            raise cannot_choose("numa_node", missing, f"numa_node={highest.value}, or ")
        self.node = node

    def reserve(self, nbytes: int) -> WindowsReservation:
        """Take address space."""
        large_nbytes = self._large_nbytes
        # What is of no whole pages is for one block, and large pages do not fit it.
        if large_nbytes and nbytes % large_nbytes == 0:
            return reserve_large(
                self._calls, nbytes, large_nbytes, self.huge_page_nbytes, self.node
            )
        reservation = reserve_small(self._calls, nbytes, self.node)
        reservation.is_prefaulting = self.is_prefaulting
        return reservation

    def memory_info(self) -> MemoryInfo:
        """Return this machine's memory, or what its job leaves to the process."""
        status = self._memory_status()
        total = int(status.ullTotalPhys)
        # What is promised to programs counts, even if they have not touched it.
        available = int(min(status.ullAvailPhys, status.ullAvailPageFile))
        for _, limit, used in self._job_limits():
            total = min(total, limit)
            available = min(available, max(limit - used, 0))
        return MemoryInfo(total, min(available, total))

    def describe(self) -> dict[str, str]:
        """Return what is in force, and why there are no large pages."""
        status = self._memory_status()
        left = format_nbytes(status.ullAvailPageFile)
        facts = {
            "commit": "by VirtualAlloc, promised in full",
            "remap": self.remap_refusal,
            "huge pages": self._describe_large_pages(),
            "prefault": "by writing" if self.is_prefaulting else "not asked for",
            "NUMA": self._describe_node(),
            "commit limit": f"{format_nbytes(status.ullTotalPageFile)}, {left} left",
        }
        for name, limit, _ in self._job_limits():
            facts[name] = format_nbytes(limit)
        return facts

    def _describe_large_pages(self) -> str:
        if self._large_nbytes:
            return f"asked for, {format_nbytes(self.huge_page_nbytes)}"
        if self.huge_page_nbytes == 0:
            return "not in this machine"
        refusal = self._large_page_refusal()
        return f"cannot be had: {refusal}" if refusal else "declined"

    def _large_page_refusal(self) -> str:
        """Return why large pages cannot be had, or nothing when they can."""
        if "VirtualAlloc2" not in self._calls:
            return "VirtualAlloc2 is in Windows 10 1803 and later"
        refusal = self._enable_locking()
        if refusal:
            return refusal
        large = self.huge_page_nbytes
        try:
            trial = reserve_large(self._calls, 2 * large, large, large)
            try:
                trial.commit(0, large)
            finally:
                trial.release()
        except OutOfMemoryError as error:
            return str(error.report.native)
        except BackendCallError as error:
            return str(error.native)
        return ""

    def _enable_locking(self) -> str:
        """Enable the privilege that large pages need; return why it cannot be."""
        calls, token = self._calls, ctypes.c_size_t()
        wanted = windows.Privilege(1, (0, 0), windows.SE_PRIVILEGE_ENABLED)
        name = f"{_PRIVILEGE}\0".encode("utf-16-le")
        if not calls["OpenProcessToken"](
            calls["GetCurrentProcess"](), windows.TOKEN_ADJUST_PRIVILEGES, byref(token)
        ):
            return str(calls.failure("OpenProcessToken"))
        try:
            if not calls["LookupPrivilegeValueW"](None, name, wanted.Luid):
                return str(calls.failure("LookupPrivilegeValueW"))
            # It succeeds whether or not the user has the privilege; the code tells.
            calls["AdjustTokenPrivileges"](token, 0, byref(wanted), 0, None, None)
            if calls.last_error():
                return f"{_PRIVILEGE}: {calls.failure('AdjustTokenPrivileges')}"
        finally:
            calls["CloseHandle"](token)
        return ""

    def _memory_status(self) -> windows.MemoryStatus:
        status = windows.MemoryStatus(dwLength=sizeof(windows.MemoryStatus))
        self._calls["GlobalMemoryStatusEx"](byref(status))
        return status

    def _job_limits(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, bytes and use of each limit of the job around this process."""
        limits = windows.JobLimits()
        if not self._ask_job(windows.JOB_EXTENDED_LIMITS, limits):
            return  # in no job
        used = self._own_nbytes()
        if limits.LimitFlags & windows.JOB_LIMIT_PROCESS_MEMORY:
            yield "job's limit for a process", int(limits.ProcessMemoryLimit), used
        if limits.LimitFlags & windows.JOB_LIMIT_JOB_MEMORY:
            usage = windows.JobMemoryUsage()
            if self._ask_job(windows.JOB_MEMORY_USAGE, usage):  # from Windows 10
                used = int(usage.JobMemory)
            yield "job's limit", int(limits.JobMemoryLimit), used

    def _ask_job(self, question: int, answer: ctypes.Structure) -> bool:
        return bool(
            self._calls["QueryInformationJobObject"](
                *(0, question, byref(answer), sizeof(answer), None)
            )
        )

    def _own_nbytes(self) -> int:
        counters = windows.ProcessMemory(cb=sizeof(windows.ProcessMemory))
        process = self._calls["GetCurrentProcess"]()
        self._calls["K32GetProcessMemoryInfo"](
            process, byref(counters), sizeof(counters)
        )
        return int(counters.PagefileUsage)
