"""This process's memory as its kernel sees it, and processes to spoil."""

import ctypes
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from madl.backends.host import linux
from madl.backends.host.linux import LinuxMemory
from madl.sizes import ADDRESS_SPACE_NBYTES

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROOM = ADDRESS_SPACE_NBYTES // 4
"""No test reserves more at once: a process of 32 bits has that, and hardly more."""
PAGE = 2 * MIB
OS_PAGE = os.sysconf("SC_PAGESIZE")
MADV_DONTDUMP = 16
SOURCE_ROOT = Path(linux.__file__).parents[2]
TEST_ROOT = Path(__file__).parents[2]

# Its own, which no test lets fail.
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HasPlace(Protocol):
    """A reservation, of madl or of its module for Linux."""

    @property
    def address(self) -> int | None:
        """Where it starts."""

    @property
    def nbytes(self) -> int:
        """Its size."""


def linux_memory(
    page_nbytes: int = PAGE, *, huge: bool | None = None, is_lazy_allowed: bool = True
) -> LinuxMemory:
    memory = LinuxMemory(is_lazy_allowed=is_lazy_allowed)
    memory.choose_pages(page_nbytes, huge=huge)
    return memory


def write(address: int, value: int, nbytes: int = PAGE) -> None:
    ctypes.memset(address, value, nbytes)


def read(address: int, nbytes: int = 1) -> bytes:
    return ctypes.string_at(address, nbytes)


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * OS_PAGE


def fault_count() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def kernel_field(reservation: HasPlace, field: str) -> int:
    """Return a field of smaps in bytes, summed over the VMAs of a reservation."""
    return kernel_sum([reservation], field)


def kernel_sum(reservations: Iterable[HasPlace], field: str) -> int:
    """Return a field of smaps in bytes, summed over the VMAs of reservations."""
    ranges = [(each.address or 0, each.nbytes) for each in reservations]
    # With a flag that nobody else sets: else the reservation of a pool that another
    # test has left may be one VMA with one of these.
    for address, nbytes in ranges:
        _madvise(address, nbytes, MADV_DONTDUMP)
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first = int(found[1], 16)
            is_inside = any(0 <= first - start < nbytes for start, nbytes in ranges)
        elif is_inside and line.startswith(f"{field}:"):
            total += int(line.split()[1]) * KIB
    return total


def vma_count(reservation: HasPlace) -> int:
    assert reservation.address is not None
    end = reservation.address + reservation.nbytes
    borders = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) ", Path("/proc/self/maps").read_text(), re.MULTILINE
    )
    return sum(
        int(first, 16) < end and int(last, 16) > reservation.address
        for first, last in borders
    )


def run_child(code: str) -> str:
    """Run code in a process of its own, after a few imports; return its output."""
    prelude = (
        "import ctypes, os, resource, sys\n"
        "from madl import OutOfMemoryError, Pool\n"
        "from madl.backends.cpu import CpuBackend\n"
        "from madl.backends.host.linux import *\n"
        "from tests.backends.host import *\n"
        "def limit(which, nbytes):\n"
        "    resource.setrlimit(which, (nbytes, resource.getrlimit(which)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{SOURCE_ROOT}{os.pathsep}{TEST_ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
