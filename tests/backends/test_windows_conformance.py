"""What Windows documents of its memory calls, held against what answers them here.

On Windows that is the system; elsewhere the emulation, which has to agree in full.
"""

import ctypes
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from ctypes import addressof, byref, sizeof
from pathlib import Path

import pytest

from madl.backends.host import windows_calls as windows
from madl.backends.host.windows_calls import WindowsCalls
from tests.backends.emulated.kernel32 import ROWS, calls_here, load

TABLE = tomllib.loads(Path(ROWS).read_text("utf-8"))
FLAGS = {
    "NOTHING": 0,
    "NOACCESS": windows.PAGE_NOACCESS,
    "READONLY": 2,
    "READWRITE": windows.PAGE_READWRITE,
    "COMMIT": windows.MEM_COMMIT,
    "RESERVE": windows.MEM_RESERVE,
    "DECOMMIT": windows.MEM_DECOMMIT,
    "RELEASE": windows.MEM_RELEASE,
    "TOP_DOWN": 0x100000,
    "LARGE_PAGES": windows.MEM_LARGE_PAGES,
    "RESERVE_PLACEHOLDER": windows.MEM_RESERVE_PLACEHOLDER,
    "REPLACE_PLACEHOLDER": windows.MEM_REPLACE_PLACEHOLDER,
    "PRESERVE_PLACEHOLDER": windows.MEM_PRESERVE_PLACEHOLDER,
    "COALESCE_PLACEHOLDERS": 1,
}
STATES = {0x1000: "COMMIT", 0x2000: "RESERVE", 0x10000: "FREE"}
P_NBYTES = 1 << 20


class Region(ctypes.Structure):
    """``MEMORY_BASIC_INFORMATION``."""

    _fields_ = (
        ("BaseAddress", ctypes.c_size_t),
        ("AllocationBase", ctypes.c_size_t),
        ("AllocationProtect", ctypes.c_uint32),
        ("PartitionId", ctypes.c_uint16),
        ("RegionSize", ctypes.c_size_t),
        ("State", ctypes.c_uint32),
        ("Protect", ctypes.c_uint32),
        ("Type", ctypes.c_uint32),
    )


def number(text: str) -> int:
    return int(text.removesuffix("K")) << (10 if text.endswith("K") else 0)


def flags(text: str) -> int:
    return sum(FLAGS[name] for name in text.split("|"))


class Machine:
    """Takes the steps of a row, and says in words what came of each."""

    def __init__(self, calls: WindowsCalls, query: Callable[..., int]) -> None:
        self.calls = calls
        self.query_function = query
        self.process = calls["GetCurrentProcess"]()
        self.p = calls.virtual_alloc(
            0, P_NBYTES, windows.MEM_RESERVE, windows.PAGE_NOACCESS
        )
        self.n = 0
        self.made = [self.p]

    def close(self) -> None:
        """Give back what the row did not."""
        for address in self.made:
            self.calls.virtual_free(address, 0, windows.MEM_RELEASE)

    def step(self, words: str) -> str:
        """Take a step; return its answer."""
        name, *arguments = words.split()
        return str(getattr(self, name)(*arguments))

    def alloc(self, where: str, nbytes: str, kind: str, protection: str) -> str:
        """Call ``VirtualAlloc``."""
        got = self.calls.virtual_alloc(
            self._address(where), number(nbytes), flags(kind), flags(protection)
        )
        return self._placed(where, got, 1 << 16)

    def alloc_numa(
        self, where: str, nbytes: str, kind: str, protection: str, node: str
    ) -> str:
        """Call ``VirtualAllocExNuma``."""
        got = self.calls["VirtualAllocExNuma"](
            *(self.process, self._address(where), number(nbytes)),
            *(flags(kind), flags(protection), number(node)),
        )
        return self._placed(where, got, 1 << 16)

    def alloc2(
        self, where: str, nbytes: str, kind: str, protection: str, alignment: str = "0"
    ) -> str:
        """Call ``VirtualAlloc2``."""
        wanted = windows.AddressRequirements(Alignment=number(alignment))
        parameter = windows.ExtendedParameter(1, addressof(wanted))
        extra = (byref(parameter), 1) if number(alignment) else (None, 0)
        got = self.calls["VirtualAlloc2"](
            *(self.process, self._address(where), number(nbytes)),
            *(flags(kind), flags(protection), *extra),
        )
        return self._placed(where, got, max(number(alignment), 1 << 16))

    def free(self, where: str, nbytes: str, kind: str) -> str:
        """Call ``VirtualFree``."""
        done = self.calls.virtual_free(
            self._address(where), number(nbytes), flags(kind)
        )
        return "ok" if done else str(self.calls.last_error())

    def query(self, where: str) -> str:
        """Call ``VirtualQuery``."""
        region = Region()
        if not self.query_function(self._address(where), byref(region), sizeof(region)):
            return str(self.calls.last_error())
        state = STATES[region.State]
        return state if state == "FREE" else f"{state} {region.RegionSize >> 10}K"

    def fill(self, where: str, nbytes: str, value: str) -> str:
        """Write memory."""
        address = self._address(where)
        if not address:
            return "no memory"
        ctypes.memset(address, int(value), number(nbytes))
        return "ok"

    def read(self, where: str) -> str:
        """Read a byte."""
        return str(ctypes.string_at(self._address(where), 1)[0])

    def _address(self, where: str) -> int:
        if where == "none":
            return 0
        base = {"p": self.p, "n": self.n}[where[0]]
        return base + sum(
            int(sign + "1") * number(nbytes)
            for sign, nbytes in re.findall(r"([+-])(\d+K?)", where)
        )

    def _placed(self, where: str, got: int, alignment: int) -> str:
        if not got:
            return str(self.calls.last_error())
        self.made.append(got)
        if where == "none":
            self.n = got
            return "n" if got % alignment == 0 else f"n, at {got:#x}"
        base = {"p": self.p, "n": self.n}[where[0]]
        away = got - base
        if away == 0:
            return where[0]
        return f"{where[0]}+{away >> 10}K" if away % 1024 == 0 else f"{away} away"


@pytest.fixture
def library() -> ctypes.CDLL:
    if sys.platform == "win32":
        return ctypes.WinDLL("kernel32", use_last_error=True)
    return load().library


@pytest.fixture
def calls() -> WindowsCalls:
    return calls_here()


@pytest.fixture
def machine(calls: WindowsCalls, library: ctypes.CDLL) -> Iterator[Machine]:
    query = library.VirtualQuery
    query.restype = ctypes.c_size_t
    query.argtypes = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t
    machine = Machine(calls, query)
    yield machine
    machine.close()


def test_the_machine(calls: WindowsCalls) -> None:
    system = windows.SystemInfo()
    calls["GetSystemInfo"](byref(system))

    assert TABLE["machine"] == {
        "os_page": system.dwPageSize,
        "granularity": system.dwAllocationGranularity,
        "large_page": calls["GetLargePageMinimum"](),
        "lowest": system.lpMinimumApplicationAddress,
        "highest": system.lpMaximumApplicationAddress,
    }


@pytest.mark.parametrize("steps", TABLE["rows"].values(), ids=TABLE["rows"])
def test_row(machine: Machine, steps: str) -> None:
    expected = steps.strip().splitlines()

    answered = [
        f"{words} -> {machine.step(words)}"
        for words, _, _ in (line.partition(" -> ") for line in expected)
    ]

    assert answered == expected
