"""NUMA nodes of Linux, by a system call that libc has no function for.

Nothing here may be used on Android, whose filter ends a process that calls it.
"""

import ctypes
import os
import sys
from functools import partial
from pathlib import Path

from madl.backends.host import cannot_choose
from madl.backends.host import linux_calls as calls
from madl.errors import NativeFailure

_NODES = Path("/sys/devices/system/node")
_PREFERRED = 1  # MPOL_PREFERRED: another node's memory rather than none
_NODE_BITS = 1024  # as many as any kernel is built for
_GENERIC = 235
_NUMBERS = {
    "x86_64": 237,
    "i386": 274,
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "armv7l": 319,
    "ppc64le": 259,
    "s390x": 268,
}
"""Of mbind, by processor."""


def refusal() -> str:
    """Return why memory of a node cannot be asked for; nothing where it can."""
    if not _NODES.is_dir():
        return "this kernel knows no nodes"
    if _processor() not in _NUMBERS:
        return f"madl knows no number of mbind for {_processor()}"
    return ""


def prefer(node: int, address: int, nbytes: int) -> bool:
    """Ask for the memory of a range to be of a node; return whether it is known."""
    if node >= _NODE_BITS:
        ctypes.set_errno(22)  # as the kernel has it for nodes beyond its own
        return False
    words = (ctypes.c_ulong * (_NODE_BITS // 8 // ctypes.sizeof(ctypes.c_ulong)))()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words[node // bits] = 1 << node % bits
    number = ctypes.c_long(_NUMBERS[_processor()])
    # The kernel reads one bit less than it is told of.
    most = ctypes.c_ulong(_NODE_BITS + 1)
    place = ctypes.c_size_t(address), ctypes.c_size_t(nbytes)
    done: int = calls.libc.syscall(
        number, *place, _PREFERRED, words, most, ctypes.c_uint(0)
    )
    return done == 0


def prefer_from_now_on(node: int) -> partial[bool]:
    """Return what asks for memory of a node, after a trial.

    Raises:
        MissingCapabilityError: The kernel refuses. There is no such node, or a
            container may not choose.
    """
    nbytes = os.sysconf("SC_PAGESIZE")
    trial = calls.system.reserve(nbytes, calls.PROT_NONE, calls.ANONYMOUS)
    is_known = prefer(node, trial, nbytes)
    code = ctypes.get_errno()
    calls.system.unmap(trial, nbytes)
    if is_known:
        return partial(prefer, node)
    native = NativeFailure("mbind", code, os.strerror(code))
    missing = f"NUMA node {node} ({native})"
    raise cannot_choose("numa_node", missing, f"one of {_online()}, or ")


def _online() -> str:
    try:
        return (_NODES / "online").read_text().strip()
    except OSError:
        return "the machine's nodes"


def _processor() -> str:
    """Return the processor that this program is made for: 32 bits may run on 64."""
    machine = os.uname().machine
    if sys.maxsize > 1 << 32:
        return machine
    return {"x86_64": "i386", "i686": "i386", "aarch64": "armv7l"}.get(machine, machine)
