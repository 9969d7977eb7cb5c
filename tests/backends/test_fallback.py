"""Systems that madl has no calls for: whole mappings by Python's own module."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys

import pytest

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host.plain import PlainMemory
from madl.backends.protocol import Capability
from madl.errors import BackendCallError, MissingCapabilityError, OutOfMemoryError
from madl.sizes import ADDRESS_SPACE_NBYTES
from tests.backends.walk import Walk, steps

if sys.platform == "win32":
    pytest.skip("mmap takes other flags there", allow_module_level=True)
if sys.platform == "linux":
    from tests.backends.host import resident_nbytes

MIB = 1 << 20


@pytest.fixture
def backend() -> CpuBackend:
    return CpuBackend(_memory=PlainMemory())


def test_a_reservation_is_memory_at_once(backend: CpuBackend) -> None:
    reservation = backend.reserve(MIB)
    assert reservation.address is not None

    ctypes.memset(reservation.address, 7, MIB)

    assert ctypes.string_at(reservation.address + MIB - 1, 1) == b"\7"
    assert reservation.address % backend.alignment == 0
    backend.release(reservation)


def test_prefaulted_memory_is_there_before_it_is_touched(backend: CpuBackend) -> None:
    if sys.platform != "linux":
        pytest.skip("the test asks Linux what is resident")
    backend.choose_prefault(prefault=True)
    before = resident_nbytes()

    reservation = backend.reserve(32 * MIB)

    assert resident_nbytes() - before > 31 * MIB
    backend.release(reservation)


def test_it_claims_neither_commits_nor_moves(backend: CpuBackend) -> None:
    memory = Capability.COMMIT | Capability.REMAP | Capability.GUARD_PAGES

    assert not backend.capabilities & memory
    assert Capability.HOST_ACCESS | Capability.PREFAULT in backend.capabilities


def test_whoever_calls_what_is_missing_is_told(backend: CpuBackend) -> None:
    reservation = backend.reserve(MIB)

    with pytest.raises(MissingCapabilityError, match="commits of a part"):
        backend.commit(reservation, 0, MIB)
    with pytest.raises(MissingCapabilityError, match="decommits of a part"):
        backend.decommit(reservation, 0, MIB)
    with pytest.raises(MissingCapabilityError, match="moves"):
        backend.remap(reservation, 0, 0, MIB)
    with pytest.raises(MissingCapabilityError, match="leave out huge_pages="):
        backend.choose_pages(mmap.PAGESIZE, huge=True)
    with pytest.raises(MissingCapabilityError, match=r"NUMA nodes .* leave out numa_n"):
        backend.choose_node(0)

    backend.release(reservation)


@pytest.mark.parametrize("nbytes", [1 << 62, ADDRESS_SPACE_NBYTES - mmap.PAGESIZE])
def test_what_cannot_be_had_is_out_of_memory(backend: CpuBackend, nbytes: int) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        backend.reserve(nbytes)

    native = caught.value.report.native
    assert native is not None
    assert (native.function, native.code) == ("mmap.mmap", errno.ENOMEM)


def test_another_failure_is_not_out_of_memory(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(mmap, "mmap", refuse)

    with pytest.raises(BackendCallError, match=r"reserve 1.0 MiB: mmap.mmap failed"):
        backend.reserve(MIB)


def test_a_walk_keeps_every_byte(backend: CpuBackend) -> None:
    pool = Pool(backend)
    walk = Walk(pool, 7)

    for step in steps(walk, 300):
        pool.check()
        if step % 100 == 0:
            pool.trim()

    walk.finish()
    assert pool.close().live_count == 0


def test_a_forked_child_writes_into_its_own_copy(backend: CpuBackend) -> None:
    reservation = backend.reserve(MIB)
    assert reservation.address is not None
    ctypes.memset(reservation.address, 1, 1)

    child = os.fork()
    if child == 0:
        ctypes.memset(reservation.address, 2, 1)
        os._exit(0)
    os.waitpid(child, 0)

    assert ctypes.string_at(reservation.address, 1) == b"\1"
    backend.release(reservation)


def test_it_says_what_is_missing(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = backend.describe()

    assert facts["commit"].startswith("at once, whole reservations (madl has no calls")
    assert facts["remap"].startswith("madl has no calls of its own for ")


def test_a_machine_that_does_not_know_its_size_has_none(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def know_nothing(name: str) -> int:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr(os, "sysconf", know_nothing)

    assert backend.memory_info() == (0, 0)


NOTHING_TO_REACH_MEMORY_BY = """
import sys
for name in ("mmap", "_ctypes", "ctypes"):
    sys.modules[name] = None
from madl.backends import cpu, registry
from madl.errors import BackendNotFoundError
for open_it in (cpu.CpuBackend, lambda: registry.open_device("cpu")):
    try:
        open_it()
    except BackendNotFoundError as error:
        print(error.reason)
print("cpu" in registry.devices(), "sim" in registry.devices())
"""


def test_a_python_that_reaches_no_memory_has_no_host() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_TO_REACH_MEMORY_BY],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    reason = f"Python on {sys.platform} has no module mmap and no _ctypes"
    assert done.stdout.splitlines() == [reason, reason, "False True"], done.stderr


def test_an_unknown_system_is_opened_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")

    backend = CpuBackend()

    assert isinstance(backend._memory, PlainMemory)
