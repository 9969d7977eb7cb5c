"""The functions of Windows that madl calls, through ctypes, and their errors."""

import ctypes
import sys
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_int,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from madl.backends.host import error_of
from madl.errors import MadlError, NativeFailure

MEM_COMMIT, MEM_RESERVE, MEM_DECOMMIT, MEM_RELEASE = 0x1000, 0x2000, 0x4000, 0x8000
MEM_LARGE_PAGES = 0x20000000
MEM_RESERVE_PLACEHOLDER, MEM_REPLACE_PLACEHOLDER = 0x40000, 0x4000
MEM_PRESERVE_PLACEHOLDER = 2
PAGE_NOACCESS, PAGE_READWRITE = 1, 4
# Of MEM_EXTENDED_PARAMETER_TYPE.
MEM_EXTENDED_PARAMETER_ADDRESS_REQUIREMENTS, MEM_EXTENDED_PARAMETER_NUMA_NODE = 1, 3

ERROR_INVALID_PARAMETER = 87
# NOT_ENOUGH_MEMORY, OUTOFMEMORY, NO_SYSTEM_RESOURCES, WORKING_SET_QUOTA,
# PAGEFILE_QUOTA, COMMITMENT_LIMIT, NOT_ENOUGH_QUOTA (a job's limit)
OUT_OF_MEMORY = frozenset({8, 14, 1450, 1453, 1454, 1455, 1816})
NO_REFUSAL: frozenset[int] = frozenset()

JOB_EXTENDED_LIMITS, JOB_MEMORY_USAGE = 9, 28  # of JOBOBJECTINFOCLASS
JOB_LIMIT_PROCESS_MEMORY, JOB_LIMIT_JOB_MEMORY = 0x100, 0x200

TOKEN_ADJUST_PRIVILEGES, SE_PRIVILEGE_ENABLED = 0x20, 2
_FROM_SYSTEM, _ON_ONE_LINE = 0x1000 | 0x200, 0xFF  # FORMAT_MESSAGE_*
_TEXT_CHARACTERS = 512


class SystemInfo(Structure):
    """``SYSTEM_INFO``."""

    _fields_ = (
        ("wProcessorArchitecture", c_uint16),
        ("wReserved", c_uint16),
        ("dwPageSize", c_uint32),
        ("lpMinimumApplicationAddress", c_size_t),
        ("lpMaximumApplicationAddress", c_size_t),
        ("dwActiveProcessorMask", c_size_t),
        ("dwNumberOfProcessors", c_uint32),
        ("dwProcessorType", c_uint32),
        ("dwAllocationGranularity", c_uint32),
        ("wProcessorLevel", c_uint16),
        ("wProcessorRevision", c_uint16),
    )


class MemoryStatus(Structure):
    """``MEMORYSTATUSEX``; its "page file" is the limit of what can be committed."""

    _fields_ = (
        ("dwLength", c_uint32),
        ("dwMemoryLoad", c_uint32),
        ("ullTotalPhys", c_uint64),
        ("ullAvailPhys", c_uint64),
        ("ullTotalPageFile", c_uint64),
        ("ullAvailPageFile", c_uint64),
        ("ullTotalVirtual", c_uint64),
        ("ullAvailVirtual", c_uint64),
        ("ullAvailExtendedVirtual", c_uint64),
    )


class JobLimits(Structure):
    """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION``."""

    _fields_ = (
        ("PerProcessUserTimeLimit", c_uint64),
        ("PerJobUserTimeLimit", c_uint64),
        ("LimitFlags", c_uint32),
        ("MinimumWorkingSetSize", c_size_t),
        ("MaximumWorkingSetSize", c_size_t),
        ("ActiveProcessLimit", c_uint32),
        ("Affinity", c_size_t),
        ("PriorityClass", c_uint32),
        ("SchedulingClass", c_uint32),
        ("IoInfo", c_uint64 * 6),
        ("ProcessMemoryLimit", c_size_t),
        ("JobMemoryLimit", c_size_t),
        ("PeakProcessMemoryUsed", c_size_t),
        ("PeakJobMemoryUsed", c_size_t),
    )


class JobMemoryUsage(Structure):
    """``JOBOBJECT_MEMORY_USAGE_INFORMATION``."""

    _fields_ = (("JobMemory", c_uint64), ("PeakJobMemoryUsed", c_uint64))


class ProcessMemory(Structure):
    """``PROCESS_MEMORY_COUNTERS``."""

    _fields_ = (
        ("cb", c_uint32),
        ("PageFaultCount", c_uint32),
        ("PeakWorkingSetSize", c_size_t),
        ("WorkingSetSize", c_size_t),
        ("QuotaPeakPagedPoolUsage", c_size_t),
        ("QuotaPagedPoolUsage", c_size_t),
        ("QuotaPeakNonPagedPoolUsage", c_size_t),
        ("QuotaNonPagedPoolUsage", c_size_t),
        ("PagefileUsage", c_size_t),
        ("PeakPagefileUsage", c_size_t),
    )


class AddressRequirements(Structure):
    """``MEM_ADDRESS_REQUIREMENTS``."""

    _fields_ = (
        ("LowestStartingAddress", c_size_t),
        ("HighestEndingAddress", c_size_t),
        ("Alignment", c_size_t),
    )


class ExtendedParameter(Structure):
    """``MEM_EXTENDED_PARAMETER``: a pointer, or a number in its place."""

    _fields_ = (("Type", c_uint64), ("Value", c_uint64))


class Privilege(Structure):
    """``TOKEN_PRIVILEGES`` of one privilege; its LUID in two halves."""

    _fields_ = (
        ("PrivilegeCount", c_uint32),
        ("Luid", c_uint32 * 2),
        ("Attributes", c_uint32),
    )


_BOOL, _DWORD, _HANDLE, _ADDRESS = c_int, c_uint32, c_size_t, c_size_t
# Addresses are size_t: an int even where a pointer would be None.
_KERNEL32: dict[str, tuple[Any, ...]] = {
    "VirtualAlloc": (_ADDRESS, _ADDRESS, c_size_t, _DWORD, _DWORD),
    "VirtualAllocExNuma": (
        *(_ADDRESS, _HANDLE, _ADDRESS, c_size_t, _DWORD, _DWORD, _DWORD),
    ),
    "GetNumaHighestNodeNumber": (_BOOL, POINTER(_DWORD)),
    "VirtualFree": (_BOOL, _ADDRESS, c_size_t, _DWORD),
    "GetSystemInfo": (None, POINTER(SystemInfo)),
    "GetLargePageMinimum": (c_size_t,),
    "GlobalMemoryStatusEx": (_BOOL, POINTER(MemoryStatus)),
    "GetCurrentProcess": (_HANDLE,),
    "K32GetProcessMemoryInfo": (_BOOL, _HANDLE, POINTER(ProcessMemory), _DWORD),
    "QueryInformationJobObject": (
        *(_BOOL, _HANDLE, c_int, c_void_p, _DWORD),
        POINTER(_DWORD),
    ),
    "CloseHandle": (_BOOL, _HANDLE),
    "FormatMessageW": (
        *(_DWORD, _DWORD, c_void_p, _DWORD, _DWORD, c_void_p, _DWORD, c_void_p),
    ),
}
_KERNELBASE: dict[str, tuple[Any, ...]] = {
    "VirtualAlloc2": (  # from Windows 10 1803
        *(_ADDRESS, _HANDLE, _ADDRESS, c_size_t, _DWORD, _DWORD),
        *(POINTER(ExtendedParameter), _DWORD),
    ),
}
_ADVAPI32: dict[str, tuple[Any, ...]] = {
    "OpenProcessToken": (_BOOL, _HANDLE, _DWORD, POINTER(_HANDLE)),
    "LookupPrivilegeValueW": (_BOOL, c_void_p, c_void_p, c_void_p),
    "AdjustTokenPrivileges": (
        *(_BOOL, _HANDLE, _BOOL, POINTER(Privilege), _DWORD, c_void_p, c_void_p),
    ),
}


class WindowsCalls:
    """Typed functions, and the error of the last one that failed in this thread.

    Args:
        libraries: kernel32, kernelbase and advapi32.
        last_error: Returns what ``GetLastError`` returned after the last call.
    """

    def __init__(
        self,
        libraries: tuple[ctypes.CDLL, ctypes.CDLL, ctypes.CDLL],
        last_error: Callable[[], int],
    ) -> None:
        self.last_error = last_error
        self._functions: dict[str, Callable[..., int]] = {}
        tables = (_KERNEL32, _KERNELBASE, _ADVAPI32)
        for library, table in zip(libraries, tables, strict=True):
            for name, (result, *arguments) in table.items():
                function = getattr(library, name, None)
                if function is not None:
                    function.restype, function.argtypes = result, arguments
                    self._functions[name] = function
        self.virtual_alloc = self._functions["VirtualAlloc"]
        self.virtual_free = self._functions["VirtualFree"]

    def __getitem__(self, name: str) -> Callable[..., int]:
        """Return a function by the name that Windows gives it."""
        return self._functions[name]

    def __contains__(self, name: str) -> bool:
        """Whether this Windows has a function."""
        return name in self._functions

    def failure(self, function: str) -> NativeFailure:
        """Return what Windows says of the call that has just failed."""
        code = self.last_error()
        return NativeFailure(function, code, self._text(code))

    def error(
        self,
        function: str,
        verb: str,
        nbytes: int,
        *,
        refusals: frozenset[int] = NO_REFUSAL,
    ) -> MadlError:
        """Return the error for a call that has just failed.

        ``refusals`` are the codes by which this call says that it has no memory.
        """
        native = self.failure(function)
        return error_of(native, verb, nbytes, is_refusal=native.code in refusals)

    def _text(self, code: int) -> str:
        # ctypes.FormatError would do, but it exists on Windows only.
        buffer = ctypes.create_string_buffer(2 * _TEXT_CHARACTERS)
        count = self["FormatMessageW"](
            *(_FROM_SYSTEM | _ON_ONE_LINE, None, code, 0),
            *(buffer, _TEXT_CHARACTERS, None),
        )
        return buffer.raw[: 2 * count].decode("utf-16-le").strip()


def system_calls() -> WindowsCalls:
    """Return the functions of the Windows that runs this program."""
    if sys.platform != "win32":
        raise OSError("kernel32 is a part of Windows")
    names = ("kernel32", "kernelbase", "advapi32")
    # The interpreter itself makes calls between ours and the question for its error.
    kernel32, kernelbase, advapi32 = (
        ctypes.WinDLL(name, use_last_error=True) for name in names
    )
    return WindowsCalls((kernel32, kernelbase, advapi32), ctypes.get_last_error)
