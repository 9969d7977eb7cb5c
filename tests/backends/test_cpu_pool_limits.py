"""A pool over real memory, in processes that are short of something."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from tests.backends.host import run_child

WALK = "from tests.backends.walk import Walk, steps\n"


def test_under_an_address_space_limit_reservations_are_smaller() -> None:
    out = run_child(
        "limit(resource.RLIMIT_AS, 2 * GIB)\n"
        "pool = Pool('cpu')\n"
        "live = [pool.allocate(32 * MIB)]\n"
        "write(live[0].address, 1, 32 * MIB)\n"
        "first = pool.stats().reserved_nbytes\n"
        "from madl.pool.allocate import parts_of\n"
        "info = parts_of(pool).backend.backend.memory_info()\n"
        "print(first < 2 * GIB < info.total_nbytes)\n"
        "while len(pool.snapshot().arenas) == 1:\n"
        "    live.append(pool.allocate(32 * MIB))\n"
        "    write(live[-1].address + 32 * MIB - 1, 1, 1)\n"
        "print(pool.stats().reserved_nbytes > first)\n"
        "print(len(live) == first // (32 * MIB) + 1)\n"
        "before = pool.stats()\n"
        "try:\n"
        "    pool.allocate(3 * GIB)\n"
        "except OutOfMemoryError as error:\n"
        "    print(error.report.native)\n"
        "pool.check()\n"
        "print(pool.stats().committed_nbytes == before.committed_nbytes)\n"
        "live.clear()\n"
        "pool.trim()\n"
        "print(pool.stats().reserved_nbytes)\n"
        "write(pool.allocate(32 * MIB).address, 1, 32 * MIB)\n"
        "pool.check()\n"
    )

    assert out.splitlines() == [
        "True",
        "True",
        "True",
        "mmap failed with 12 (Cannot allocate memory)",
        "True",
        "0",
    ]


def test_a_walk_under_an_address_space_limit() -> None:
    out = run_child(
        WALK + "limit(resource.RLIMIT_AS, GIB)\n"
        "walk = Walk(Pool('cpu', page_size='64 KiB'), 1)\n"
        "for _ in steps(walk, 3000): pass\n"
        "print(walk.pool.stats().recycled_pages > 100)\n"
        "walk.finish()\n"
    )

    assert out == "True"


def test_a_walk_under_a_data_limit_is_strict() -> None:
    out = run_child(
        WALK + "limit(resource.RLIMIT_DATA, 256 * MIB)\n"
        "backend = CpuBackend()\n"
        "walk = Walk(Pool(backend, page_size='64 KiB'), 1)\n"
        "for _ in steps(walk, 3000): pass\n"
        "print({type(one).__name__ for one in backend._kept.values()})\n"
        "print(walk.pool.stats().recycled_pages > 100)\n"
        "live, refused = [], None\n"
        "while refused is None:\n"
        "    try:\n"
        "        live.append(walk.pool.allocate(MIB))\n"
        "        write(live[-1].address, 1, MIB)\n"
        "    except OutOfMemoryError as error:\n"
        "        refused = error.report\n"
        "print(refused.native, 64 < refused.committed_nbytes // MIB < 256)\n"
        "walk.pool.check()\n"
        "live.clear()\n"
        "walk.pool.trim(walk.live_nbytes)\n"
        "for _ in steps(walk, 1000): pass\n"
        "walk.finish()\n"
    )

    assert out.splitlines() == [
        "{'StrictReservation'}",
        "True",
        "mprotect failed with 12 (Cannot allocate memory) True",
    ]


USE_UP_VMAS = (
    "from madl.backends.host import linux_calls\n"
    "def use_up_vmas(spare):\n"
    "    'Split a mapping into VMAs until only a few more may be made.'\n"
    # What Python will need is put by: no mmap in malloc, and nothing given back.
    "    if hasattr(linux_calls.libc, 'mallopt'):\n"
    "        linux_calls.libc.mallopt(-3, 1 << 30)\n"
    "        linux_calls.libc.mallopt(-1, 1 << 30)\n"
    "        put_by = [bytes(64 * KIB) for _ in range(512)]\n"
    "        del put_by\n"
    "    most = int(open('/proc/sys/vm/max_map_count').read())\n"
    "    start = linux_calls.system.mmap(0, 2 * most * OS_PAGE, 0, 0x22, -1, 0)\n"
    "    have = sum(1 for _ in open('/proc/self/maps'))\n"
    "    for number in range((most - have - spare) // 2):\n"
    "        place = start + (2 * number + 1) * OS_PAGE\n"
    "        assert linux_calls.system.mprotect(place, OS_PAGE, 1) == 0\n"
)


@pytest.mark.parametrize("spare", [1000, 100])
def test_a_lazy_walk_with_few_vmas_left_keeps_content(spare: int) -> None:
    out = run_child(
        WALK + USE_UP_VMAS + "walk = Walk(Pool('cpu', page_size=OS_PAGE), 1)\n"
        "for _ in steps(walk, 500): pass\n"
        f"use_up_vmas({spare})\n"
        "for _ in steps(walk, 3000): pass\n"
        "print(walk.pool.stats().recycled_pages > 1000)\n"
        "print(sum(1 for _ in open('/proc/self/maps')) > 60000)\n"
        "walk.finish()\n"
    )

    assert out.split() == ["True", "True"]


def test_a_strict_walk_with_few_vmas_left_keeps_content() -> None:
    out = run_child(
        WALK + USE_UP_VMAS + "seal, sealed = StrictReservation._seal, []\n"
        "def record(*place):\n"
        "    sealed.append(seal(*place))\n"
        "    return sealed[-1]\n"
        "StrictReservation._seal = record\n"
        "backend = CpuBackend(\n"
        "    _memory=linux_memory(OS_PAGE, is_lazy_allowed=False))\n"
        "walk = Walk(Pool(backend, page_size=OS_PAGE), 1)\n"
        "for _ in steps(walk, 500): pass\n"
        "use_up_vmas(30)\n"
        "for step in range(2000):\n"
        "    try:\n"
        "        walk.step()\n"
        "    except OutOfMemoryError as error:\n"
        "        assert error.report.native.function == 'mprotect', error\n"
        "        walk.pool.check()\n"
        "    if step % 50 == 0:\n"
        "        walk.pool.trim()\n"
        "print(sealed.count(False) > 0, sealed.count(True) > 0)\n"
        "walk.finish()\n"
    )

    assert out == "True True"
