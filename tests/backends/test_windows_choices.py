"""What may be chosen on Windows: memory that is there at once, and of which node."""

import ctypes
import sys
from collections.abc import Iterator

import pytest

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host import windows_calls as windows
from madl.backends.host.windows import WindowsMemory
from madl.backends.host.windows_reservations import LargeReservation
from madl.backends.protocol import Capability
from madl.errors import MissingCapabilityError
from tests.backends.emulated.kernel32 import (
    ANY_NODE,
    Kernel32,
    Without,
    calls_here,
    load,
)

MIB = 1 << 20
LARGE = 2 * MIB

if sys.platform == "linux":
    from tests.backends.host import resident_nbytes
else:

    def resident_nbytes() -> int:
        calls = calls_here()
        counters = windows.ProcessMemory(cb=ctypes.sizeof(windows.ProcessMemory))
        calls["K32GetProcessMemoryInfo"](
            calls["GetCurrentProcess"](), ctypes.byref(counters), counters.cb
        )
        return int(counters.WorkingSetSize)


@pytest.fixture
def memory() -> WindowsMemory:
    return WindowsMemory(_calls=calls_here())


@pytest.fixture
def kernel32() -> Iterator[Kernel32]:
    kernel32 = load()
    yield kernel32
    assert (kernel32.reservation_count, kernel32.committed_nbytes) == (0, 0)


@pytest.mark.parametrize("prefault", [True, False])
def test_what_is_committed_is_there_where_that_was_asked_for(
    memory: WindowsMemory, prefault: bool
) -> None:
    pool = Pool(CpuBackend(_memory=memory), prefault=prefault)
    pool.allocate(1).free()
    before = resident_nbytes()

    live = pool.allocate(64 * MIB)

    assert (resident_nbytes() - before > 60 * MIB) == prefault
    live.free()
    pool.close()


def test_it_says_what_was_chosen(memory: WindowsMemory) -> None:
    before = memory.describe()
    memory.choose_prefault(prefault=True)
    memory.choose_node(0)
    after = memory.describe()

    assert (before["prefault"], before["NUMA"]) == ("not asked for",) * 2
    assert (after["prefault"], after["NUMA"]) == ("by writing", "node 0 preferred")


def test_memory_of_a_node_is_as_any_other(memory: WindowsMemory) -> None:
    with Pool(CpuBackend(_memory=memory), numa_node=0) as pool:
        live = pool.allocate(4 * MIB)
        ctypes.memset(live.address, 1, 4 * MIB)
        live.free()
        pool.check()


def test_a_reservation_is_of_the_node(kernel32: Kernel32) -> None:
    memory = WindowsMemory(_calls=kernel32.calls)
    nodes = []

    for node in (1, 0, None):
        memory.choose_node(node)
        reservation = memory.reserve(MIB)
        nodes.append(kernel32.node_of(reservation.address))
        reservation.release()

    assert nodes == [1, 0, ANY_NODE]


def test_large_pages_are_of_the_node(kernel32: Kernel32) -> None:
    kernel32.library.EmuGrantLockMemory()
    memory = WindowsMemory(_calls=kernel32.calls)
    memory.choose_pages(LARGE, huge="explicit")
    memory.choose_node(1)
    reservation = memory.reserve(4 * LARGE)
    assert isinstance(reservation, LargeReservation)
    assert reservation.address % LARGE == 0

    reservation.commit(LARGE, LARGE)

    assert kernel32.node_of(reservation.address) == 1
    assert kernel32.node_of(reservation.address + LARGE) == 1
    reservation.release()


def test_a_node_that_there_is_not_is_refused(kernel32: Kernel32) -> None:
    memory = WindowsMemory(_calls=kernel32.calls)
    memory.choose_node(1)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.choose_node(2)

    assert memory.describe()["NUMA"] == "node 1 preferred"
    assert str(caught.value) == (
        "cpu has no NUMA node 2; the highest is 1. "
        "Try: numa_node=1, or leave out numa_node="
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("VirtualAllocExNuma", r"\(this Windows has no call for it\)"),
        ("GetNumaHighestNodeNumber", r"\(GetNumaHighestNodeNumber failed with 5 "),
    ],
)
def test_a_windows_that_knows_no_nodes_refuses_them(
    kernel32: Kernel32, name: str, reason: str
) -> None:
    backend = CpuBackend(_memory=WindowsMemory(_calls=Without(name, kernel32)))

    with pytest.raises(MissingCapabilityError, match=f"NUMA nodes {reason}"):
        backend.choose_node(0)

    assert (Capability.NUMA in backend.capabilities) == (name[0] == "G")


def test_explicit_large_pages_need_the_privilege_too(kernel32: Kernel32) -> None:
    backend = CpuBackend(_memory=WindowsMemory(_calls=kernel32.calls))

    with pytest.raises(MissingCapabilityError, match="SeLockMemoryPrivilege"):
        Pool(backend, huge_pages="explicit")


def test_a_node_may_refuse_a_reservation(kernel32: Kernel32) -> None:
    memory = WindowsMemory(_calls=kernel32.calls)
    memory.choose_node(1)
    kernel32.fail(1, 1455)

    with pytest.raises(MemoryError, match="VirtualAllocExNuma failed with 1455"):
        memory.reserve(MIB)
