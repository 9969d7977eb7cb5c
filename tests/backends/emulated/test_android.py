"""Android, emulated: Linux's calls with larger OS pages, names, and tags."""

import re
import sys
import weakref
from pathlib import Path

import pytest

import madl
from madl import Capability, Pool
from madl.backends import cpu
from madl.backends.cpu import CpuBackend
from madl.backends.host import (
    android as _android,
)
from madl.backends.host import (
    linux,
    linux_calls,
    posix_calls,
    proc,
)
from madl.backends.host.android import AndroidMemory
from madl.errors import MissingCapabilityError
from madl.pool import parts
from tests.backends.emulated.posix import Posix

PAGE = 2 << 20
ALLOWED = {"madvise", "mmap", "mmap64", "mprotect", "mremap", "munmap", "prctl"}
"""What bionic's filter for apps lets through, of what madl could want."""


def test_reservations_have_a_name(android: Posix) -> None:
    memory = AndroidMemory()
    before = android.names

    reservation = memory.reserve(PAGE)

    assert memory.has_names
    assert android.names == before + 1
    assert memory.describe()["in /proc/self/maps"] == "named madl"
    reservation.release()


def test_pages_of_a_small_os_page_are_refused(android: Posix) -> None:
    with pytest.raises(ValueError, match="multiple of 16384, got 4096"):
        CpuBackend(page_nbytes=4096, _memory=AndroidMemory())


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="there is no top byte to tag")
def test_addresses_with_a_tag_in_the_top_byte_stay_whole(android: Posix) -> None:
    tag = 0xB4 << 56
    backend = CpuBackend(_memory=AndroidMemory())
    android.tag(tag)
    reservation = backend.reserve(8 * PAGE)

    backend.commit(reservation, 0, PAGE)
    backend.remap(reservation, 0, 2 * PAGE, PAGE)
    backend.decommit(reservation, 2 * PAGE, PAGE)

    assert reservation.address is not None
    assert reservation.address & tag == tag
    assert reservation.address > 0
    backend.release(reservation)


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="there is no top byte to tag")
def test_a_pool_hands_out_tagged_addresses_unsigned(android: Posix) -> None:
    pool = Pool(CpuBackend(_memory=AndroidMemory()))
    android.tag(0xB4 << 56)

    live = [pool.allocate(nbytes) for nbytes in (1, 4096, 3 * PAGE)]

    assert all(each.address >> 56 == 0xB4 for each in live)
    pool.check()
    live.clear()
    pool.close()


def test_no_module_of_linux_or_android_makes_another_call() -> None:
    called = set()
    for module in (_android, linux, linux_calls, posix_calls, proc):
        text = Path(str(module.__file__)).read_text("utf-8")
        called |= set(re.findall(r'declare\(\s*(?:library|libc), "(\w+)"', text))
        called |= set(re.findall(r"\blibc\.(\w+)", text))
        assert "syscall(" not in text

    assert {"madvise", "mremap", "prctl"} <= called <= ALLOWED


def test_a_node_is_never_asked_for(
    android: Posix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "madl.backends.host.linux_numa", raising=False)
    backend = CpuBackend(_memory=AndroidMemory())

    with pytest.raises(MissingCapabilityError) as caught:
        backend.choose_node(0)

    assert "madl.backends.host.linux_numa" not in sys.modules
    assert Capability.NUMA not in backend.capabilities
    assert str(caught.value) == (
        "cpu has no NUMA nodes (Android ends an app that asks for a node). "
        "Try: leave out numa_node="
    )


def test_one_call_answers_low_memory(
    android: Posix, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the pools of other tests, whose memory this system does not know.
    monkeypatch.setattr(parts, "_all", weakref.WeakKeyDictionary())
    with Pool(CpuBackend(_memory=AndroidMemory())) as pool:
        kept = pool.allocate(PAGE)
        pool.allocate(8 * PAGE).free()
        before = android.discarded_nbytes

        released = madl.trim()

        assert released >= 8 * PAGE
        assert android.discarded_nbytes - before == 8 * PAGE
        pool.check()
        kept.free()


def test_the_api_levels_are_told(
    android: Posix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "getandroidapilevel", lambda: 24, raising=False)

    assert AndroidMemory().describe()["Android API level"] == "35, built for 24"


def test_an_old_libc_tells_the_level_it_was_built_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sys, "getandroidapilevel", raising=False)

    assert AndroidMemory().describe()["Android API level"] == "built for unknown"


def test_a_python_that_knows_an_api_level_runs_on_android(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "getandroidapilevel", lambda: 24, raising=False)

    assert isinstance(cpu.open_host_memory(), AndroidMemory)
