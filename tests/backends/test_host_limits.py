"""Requests that no machine can meet leave a pool of host memory as it was."""

import sys

import pytest

from madl import Pool
from madl.errors import OutOfMemoryError
from madl.pool.allocate import parts_of
from madl.sizes import ADDRESS_SPACE_NBYTES
from tests.backends.host import MIB, PAGE, run_child


@pytest.mark.parametrize(
    "nbytes", [ADDRESS_SPACE_NBYTES - 1, ADDRESS_SPACE_NBYTES - 3 * MIB]
)
@pytest.mark.parametrize("pooling", [True, False])
def test_nearly_the_whole_address_space_is_out_of_memory(
    nbytes: int, pooling: bool
) -> None:
    pool = Pool("cpu", pooling=pooling)
    kept = pool.allocate(3 * MIB)
    before = pool.stats()

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(nbytes)

    after = pool.stats()
    assert caught.value.requested == nbytes
    assert (after.live_nbytes, after.committed_nbytes, after.reserved_nbytes) == (
        before.live_nbytes,
        before.committed_nbytes,
        before.reserved_nbytes,
    )
    pool.check()
    kept.free()
    pool.close()


def test_more_than_the_address_space_is_no_size() -> None:
    pool = Pool("cpu")

    with pytest.raises(OverflowError, match="must fit the address space"):
        pool.allocate(ADDRESS_SPACE_NBYTES)

    assert pool.stats().backend_calls == 0
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_an_alignment_beyond_the_limit_changes_nothing() -> None:
    out = run_child(
        "limit(resource.RLIMIT_AS, 2 * GIB)\n"
        "pool = Pool('cpu')\n"
        "kept = pool.allocate(MIB)\n"
        "before = pool.stats()\n"
        "try:\n"
        "    pool.allocate(MIB, alignment=2 * GIB)\n"
        "except OutOfMemoryError as error:\n"
        "    print(error.report.native.function)\n"
        "pool.check()\n"
        "print(pool.stats().committed_nbytes == before.committed_nbytes)\n"
        "print(pool.stats().reserved_nbytes == before.reserved_nbytes)\n"
    )

    assert out.split() == ["mmap", "True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_limit_set_after_the_pool_was_made_is_answered() -> None:
    out = run_child(
        "pool = Pool(CpuBackend(_memory=linux_memory(is_lazy_allowed=False)))\n"
        "live = [pool.allocate(8 * MIB)]\n"
        "used = int(open('/proc/self/statm').read().split()[5]) * OS_PAGE\n"
        "limit(resource.RLIMIT_DATA, used + 64 * MIB)\n"
        "try:\n"
        "    while True:\n"
        "        live.append(pool.allocate(8 * MIB))\n"
        "        write(live[-1].address, 1, 8 * MIB)\n"
        "except OutOfMemoryError as error:\n"
        "    print(error.report.native.function, 3 < len(live) < 12)\n"
        "pool.check()\n"
        "committed = pool.stats().committed_nbytes\n"
        "live.pop().free()\n"
        "live.append(pool.allocate(8 * MIB))\n"
        "print(pool.stats().committed_nbytes == committed)\n"
    )

    assert out.split() == ["mprotect", "True", "True"]


def test_pages_are_whole_os_pages_whatever_their_size() -> None:
    pool = Pool("cpu", limit=16 * PAGE)

    assert parts_of(pool).options.page_nbytes % parts_of(pool).backend.granularity == 0
    pool.close()


def test_a_view_of_more_than_half_the_addresses_is_refused_not_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Pool("cpu").allocate(2 * MIB)
    monkeypatch.setattr(sys, "maxsize", MIB)

    with pytest.raises(OverflowError) as caught:
        memory.memoryview()

    assert str(caught.value) == (
        "a view has at most 1048576 bytes, the memory has 2097152; "
        "allocate it in two parts"
    )


@pytest.mark.skipif(sys.maxsize > 1 << 32, reason="it takes half of 32-bit addresses")
def test_two_gigabytes_work_on_32_bits() -> None:
    out = run_child(
        "pool = Pool('cpu')\n"
        "memory = pool.allocate(5 * GIB // 2)\n"
        "last = memory.address + memory.nbytes - 1\n"
        "ctypes.memset(last, 7, 1)\n"
        "print(memory.nbytes, memory.address > 0, ctypes.string_at(last, 1))\n"
        "pool.check()\n"
        "memory.free()\n"
        "print(pool.close().live_count)\n"
    )

    assert out.splitlines() == [f"{5 << 29} True b'\\x07'", "0"]
