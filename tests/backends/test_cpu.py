"""The cpu backend: the protocol, the machine's memory, the table of systems."""

import ctypes
import mmap
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from madl.backends import cpu
from madl.backends.cpu import CpuBackend
from madl.backends.host import linux_calls, proc
from madl.backends.protocol import (
    Capability,
    HugePageBackend,
    RemapBackend,
    Reservation,
)
from madl.errors import BackendCallError, OutOfMemoryError
from tests.backends.host import ROOM

if sys.platform != "linux":
    pytest.skip("madl has calls for Linux only", allow_module_level=True)

MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture
def backend() -> CpuBackend:
    return CpuBackend()


@pytest.fixture
def reservation(backend: CpuBackend) -> Iterator[Reservation]:
    reservation = backend.reserve(16 * PAGE)
    yield reservation
    backend.release(reservation)


def test_it_is_a_backend_that_can_remap(backend: CpuBackend) -> None:
    assert isinstance(backend, RemapBackend)
    assert backend.device == "cpu"
    assert Capability.COMMIT | Capability.HOST_ACCESS in backend.capabilities


def test_its_numbers(backend: CpuBackend) -> None:
    assert backend.granularity == mmap.PAGESIZE
    assert backend.alignment == 2 * MIB
    assert backend.page_nbytes == 2 * MIB
    assert CpuBackend(page_nbytes=65536).page_nbytes == 65536


def test_it_chooses_pages_where_the_kernel_has_huge_ones(backend: CpuBackend) -> None:
    has_huge_pages = proc.huge_page_nbytes() + proc.explicit_page_nbytes() > 0

    assert isinstance(backend, HugePageBackend)
    assert (Capability.HUGE_PAGES in backend.capabilities) == has_huge_pages


def test_a_kernel_without_huge_pages_has_nothing_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "_THP", tmp_path)
    monkeypatch.setattr(proc, "explicit_page_nbytes", lambda: 0)
    backend = CpuBackend()

    backend.choose_pages(PAGE, huge=None)
    backend.choose_pages(65536, huge=False)

    assert Capability.HUGE_PAGES not in backend.capabilities
    assert backend.describe()["huge pages"] == "declined"


@pytest.mark.parametrize("page_nbytes", [0, 1, 4095, 4097])
def test_pages_to_choose_must_be_multiples_of_the_os_page(
    backend: CpuBackend, page_nbytes: int
) -> None:
    with pytest.raises(ValueError, match=rf"multiple of \d+, got {page_nbytes}$"):
        backend.choose_pages(page_nbytes, huge=None)


@pytest.mark.parametrize("page_nbytes", [0, 1, 4095, 4097])
def test_a_page_must_be_a_multiple_of_the_os_page(page_nbytes: int) -> None:
    with pytest.raises(ValueError, match=rf"multiple of \d+, got {page_nbytes}$"):
        CpuBackend(page_nbytes=page_nbytes)


def test_reserve_commit_write_decommit_release(
    backend: CpuBackend, reservation: Reservation
) -> None:
    assert reservation.address is not None
    assert reservation.native == reservation.address

    backend.commit(reservation, 3 * PAGE, PAGE)
    ctypes.memset(reservation.address + 3 * PAGE, 7, PAGE)
    backend.remap(reservation, 3 * PAGE, 9 * PAGE, PAGE)
    ctypes.memset(reservation.address + 9 * PAGE, 8, PAGE)
    backend.decommit(reservation, 9 * PAGE, PAGE)


def test_a_second_release_is_an_error(backend: CpuBackend) -> None:
    reservation = backend.reserve(PAGE)
    backend.release(reservation)

    with pytest.raises(ValueError, match="not released yet"):
        backend.release(reservation)


def test_a_foreign_reservation_is_an_error(
    backend: CpuBackend, reservation: Reservation
) -> None:
    with pytest.raises(ValueError, match="must be one of this backend"):
        CpuBackend().commit(reservation, 0, PAGE)


def test_a_refused_reservation_leaves_the_backend_usable(backend: CpuBackend) -> None:
    with pytest.raises(OutOfMemoryError):
        backend.reserve(1 << 60)

    backend.release(backend.reserve(PAGE))


def test_four_times_the_memory_can_be_reserved(backend: CpuBackend) -> None:
    nbytes = 4 * backend.memory_info().total_nbytes // PAGE * PAGE
    if nbytes > ROOM:
        pytest.skip("there are not so many addresses")

    backend.release(backend.reserve(nbytes))


def test_memory_info_is_plausible(backend: CpuBackend) -> None:
    info = backend.memory_info()

    physical = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    assert 0 < info.available_nbytes <= info.total_nbytes <= physical


def test_describe_says_how_it_commits(backend: CpuBackend) -> None:
    facts = backend.describe()

    assert re.match("lazy|strict", facts["commit"])
    assert {"remap", "huge pages", "OS page", "page", "RLIMIT_AS"} <= set(facts)
    assert facts["OS page"] == f"{mmap.PAGESIZE / 1024:.1f} KiB"


@pytest.mark.parametrize(
    ("system", "module"),
    [
        ("linux", "linux"),
        ("darwin", "darwin"),
        ("freebsd14", "bsd"),
        ("netbsd10", "bsd"),
        ("openbsd7", "bsd"),
        ("emscripten", "plain"),
        ("sunos5", "plain"),
    ],
)
def test_each_system_has_its_module(
    monkeypatch: pytest.MonkeyPatch, system: str, module: str
) -> None:
    opened: list[str] = []

    class Opened:
        def __getattr__(self, name: str) -> type:
            return dict

    def note(name: str) -> Opened:
        opened.append(name)
        return Opened()

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(cpu, "import_module", note)

    cpu.open_host_memory()

    assert opened == [f"madl.backends.host.{module}"]


def test_a_release_that_fails_can_be_tried_again(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = backend.reserve(PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(linux_calls.system, "munmap", lambda *_: -1)
        with pytest.raises(BackendCallError):
            backend.release(reservation)

    backend.release(reservation)
