"""Linux as an app of Android sees it: other system calls end the process.

The filter is for x86-64, and of what an allocator may be tempted to call. Android's
own is longer; whoever passes here makes none of these.
"""

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys

from tools.portability import suite
from tools.portability.outcome import FailedError, SkippedError

DENIED = {
    "io_uring_setup": 425,
    "get_mempolicy": 239,
    "map_shadow_stack": 453,
    "mbind": 237,
    "memfd_secret": 447,
    "migrate_pages": 256,
    "move_pages": 279,
    "pkey_alloc": 330,
    "pkey_free": 331,
    "pkey_mprotect": 329,
    "process_mrelease": 448,
    "remap_file_pages": 216,
    "set_mempolicy": 238,
    "set_mempolicy_home_node": 450,
    "shmat": 30,
    "shmctl": 31,
    "shmdt": 67,
    "shmget": 29,
    "swapon": 167,
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: word at k; jump if it is k; return k
_ARCHITECTURE, _NUMBER, _X86_64 = 4, 0, 0xC000003E  # offsets in seccomp_data; its value
_ALLOW, _TRAP, _KILL = 0x7FFF0000, 0x00030000, 0x80000000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def install() -> None:
    """Let this process and its children make none of the denied calls."""
    numbers = sorted(DENIED.values())
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *(
            (_EQUAL, len(numbers) - place, 0, number)
            for place, number in enumerate(numbers)
        ),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _TRAP),
    ]
    packed = b"".join(struct.pack("HBBI", *step) for step in steps)
    place = ctypes.create_string_buffer(packed)
    program = _Program(len(steps), ctypes.addressof(place))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    filtering = _SET_SECCOMP, _FILTER, ctypes.addressof(program), 0, 0
    for request in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), filtering):
        if libc.prctl(*request) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> str:
    """Run the tests of the host under the filter, with Android's module chosen."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SkippedError("the filter is for Linux on x86-64")
    here = [sys.executable, "-m", "tools.portability.seccomp"]
    call = "import ctypes; ctypes.CDLL(None).syscall(237, 0, 0, 0, 0, 0, 0)"
    env = {**os.environ, **suite.environment()}
    done = subprocess.run([*here, sys.executable, "-c", call], env=env, check=False)
    if done.returncode != -signal.SIGSYS:
        raise FailedError(f"mbind is not denied: status {done.returncode}")
    passed = suite.run_tests(
        [*here, sys.executable, *_AS_ANDROID],
        deselected=_OF_OTHER_SYSTEMS,
        has_numpy=False,  # OpenBLAS calls mbind when it is imported
    )
    return f"mbind ends a process by SIGSYS; {passed}"


_OF_OTHER_SYSTEMS = (
    "tests/backends/test_cpu.py::test_each_system_has_its_module",
    "tests/backends/test_fallback.py::test_an_unknown_system_is_opened_this_way",
)
_AS_ANDROID = (
    "-c",
    "import runpy, sys; sys.getandroidapilevel = lambda: 24; del sys.argv[1:3]; "
    "runpy.run_module('pytest', run_name='__main__', alter_sys=True)",
)

if __name__ == "__main__":
    install()
    os.execvp(sys.argv[1], sys.argv[1:])
