"""Host memory of Android: that of Linux, within the system calls an app may make.

An app that makes a system call outside its seccomp filter is ended by SIGSYS, so no
probe may try one: mbind, get_mempolicy, pkey_alloc and shmget are among them. Nothing
here or in ``linux`` calls but mmap, munmap, mprotect, madvise, mremap and prctl.
"""

import ctypes
import sys

from madl.backends.host import linux_calls as calls
from madl.backends.host.linux import LinuxMemory

_UNKNOWN = "unknown"


class AndroidMemory(LinuxMemory):
    """What the kernel, and Android, let an app have."""

    @staticmethod
    def _find_numa_refusal() -> str:
        return "Android ends an app that asks for a node"

    def describe(self) -> dict[str, str]:
        """Return what was chosen, and why; and of which Android."""
        return {"Android API level": _api_level(), **super().describe()}


def _api_level() -> str:
    """Return the level of the device, and the one that this Python was built for."""
    read = getattr(calls.libc, "android_get_device_api_level", None)
    built = getattr(sys, "getandroidapilevel", lambda: _UNKNOWN)()
    if read is None:  # in libc from level 29
        return f"built for {built}"
    read.restype, read.argtypes = ctypes.c_int, ()
    return f"{read()}, built for {built}"
