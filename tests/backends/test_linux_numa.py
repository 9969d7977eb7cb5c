"""Memory of one NUMA node, asked for by mbind."""

import ctypes
import errno
import sys
from pathlib import Path

import pytest

if sys.platform != "linux" or hasattr(sys, "getandroidapilevel"):
    pytest.skip("Linux only; Android ends who asks", allow_module_level=True)

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host import linux_calls, linux_numa
from madl.backends.host.linux import LinuxMemory
from madl.backends.protocol import Capability
from madl.errors import MissingCapabilityError
from tests.backends.host import PAGE, write

MAPS = Path("/proc/self/numa_maps")


@pytest.fixture
def memory() -> LinuxMemory:
    memory = LinuxMemory()
    try:
        memory.choose_node(0)
    except MissingCapabilityError as error:
        pytest.skip(str(error))
    if not MAPS.exists():
        pytest.skip("this kernel does not say where memory is")
    return memory


def policy_at(address: int) -> str:
    """Return how the memory at the start of a VMA is placed, in the kernel's words."""
    for line in MAPS.read_text().splitlines():
        start, policy, *_ = line.split()
        if int(start, 16) == address:
            return policy
    return "no VMA starts there"


@pytest.mark.parametrize("is_lazy_allowed", [True, False])
def test_a_reservation_is_of_the_node(
    memory: LinuxMemory, is_lazy_allowed: bool
) -> None:
    memory = LinuxMemory(is_lazy_allowed=is_lazy_allowed)
    memory.choose_node(0)
    reservation = memory.reserve(4 * PAGE)
    reservation.commit(0, 2 * PAGE)

    write(reservation.address, 1, 2 * PAGE)

    assert policy_at(reservation.address) == "prefer:0"
    reservation.release()


def test_memory_that_was_given_back_comes_from_the_node_again(
    memory: LinuxMemory,
) -> None:
    memory = LinuxMemory(is_lazy_allowed=False)
    memory.choose_node(0)
    reservation = memory.reserve(4 * PAGE)
    reservation.commit(0, 2 * PAGE)
    reservation.decommit(0, PAGE)
    reservation.commit(0, PAGE)

    assert policy_at(reservation.address) == "prefer:0"
    reservation.release()


def test_no_node_is_asked_for_any_more(memory: LinuxMemory) -> None:
    memory.choose_node(None)

    reservation = memory.reserve(4 * PAGE)
    write(reservation.address, 1, PAGE)

    assert policy_at(reservation.address) == "default"
    reservation.release()


def test_a_pool_is_of_a_node(memory: LinuxMemory) -> None:
    backend = CpuBackend(_memory=memory)
    pool = Pool(backend, numa_node=0)

    pool.allocate(PAGE).free()

    assert backend.describe()["NUMA"] == "node 0 preferred"
    pool.close()


@pytest.mark.parametrize("node", [1023, 1024, 1 << 40])
def test_a_node_that_there_is_not_is_refused(memory: LinuxMemory, node: int) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        memory.choose_node(node)

    online = Path("/sys/devices/system/node/online").read_text().strip()
    assert str(caught.value) == (
        f"cpu has no NUMA node {node} (mbind failed with 22 (Invalid argument)). "
        f"Try: one of {online}, or leave out numa_node="
    )
    assert memory.describe()["NUMA"] == "node 0 preferred"


def test_a_container_that_lets_nobody_choose_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Filtered:
        @staticmethod
        def syscall(*_arguments: object) -> int:
            ctypes.set_errno(errno.EPERM)
            return -1

    memory = LinuxMemory()
    monkeypatch.setattr(memory, "numa_refusal", "")
    monkeypatch.setattr(linux_calls, "libc", Filtered)

    with pytest.raises(MissingCapabilityError, match="failed with 1 "):
        memory.choose_node(0)


@pytest.mark.parametrize(
    ("system", "refusal"),
    [
        ({"_NODES": Path("/nowhere")}, "this kernel knows no nodes"),
        ({"_NODES": Path("/"), "_NUMBERS": {}}, "madl knows no number of mbind for "),
    ],
)
def test_a_machine_without_nodes_says_why(
    system: dict[str, object], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in system.items():
        monkeypatch.setattr(linux_numa, name, value)
    backend = CpuBackend()

    with pytest.raises(MissingCapabilityError, match=refusal):
        backend.choose_node(0)

    backend.choose_node(None)
    assert Capability.NUMA not in backend.capabilities
    assert backend.describe()["NUMA"].startswith(refusal)
