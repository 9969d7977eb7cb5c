"""Whole pools on an emulated Windows: content, accounts, and calls that fail."""

import ctypes
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from madl import Memory, Pool
from madl.backends.cpu import CpuBackend
from madl.backends.host.windows import WindowsMemory
from madl.errors import BackendCallError, OutOfMemoryError
from tests.backends.emulated.kernel32 import Kernel32, load
from tests.property.pool_model import PoolModel, Setting, random_step

if sys.platform != "linux":
    pytest.skip("kernel32 is emulated on Linux", allow_module_level=True)

from tests.backends.walk import Walk, steps

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class WindowsBackend(CpuBackend):
    """The host, with what is committed as the emulation counts it."""

    def __init__(self, kernel32: Kernel32) -> None:
        super().__init__(_memory=WindowsMemory(_calls=kernel32.calls))
        self.kernel32 = kernel32

    @property
    def committed_nbytes(self) -> int:
        """Bytes that are committed now."""
        return self.kernel32.committed_nbytes


@dataclass(frozen=True)
class WindowsSetting(Setting):
    """The options of a pool on an emulated Windows."""

    kernel32: Kernel32 = field(kw_only=True)

    def make_backend(self) -> WindowsBackend:  # type: ignore[override]  # as the others
        """Return a new device."""
        return WindowsBackend(self.kernel32)


@pytest.fixture
def kernel32() -> Iterator[Kernel32]:
    kernel32 = load()
    yield kernel32
    assert (kernel32.reservation_count, kernel32.committed_nbytes) == (0, 0)


OPTIONS = {
    "recycling": {},
    "best fit": {"fit": "best"},
    "no recycling": {"recycle": False},
    "no pooling": {"pooling": False},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_pool_agrees_with_the_plainest_account_of_it(
    kernel32: Kernel32, options: dict[str, object], seed: int
) -> None:
    # Each option of a Setting has a type of its own.
    setting = WindowsSetting(kernel32=kernel32, limit=3 * MIB, **options)  # type: ignore[arg-type]
    draw = random.Random(seed)
    model = PoolModel(setting)

    for step in range(600):
        random_step(model, draw)
        if step % 25 == 0:
            model.check()

    model.close()


@pytest.mark.parametrize("is_large", [False, True], ids=["OS pages", "large pages"])
def test_a_walk_keeps_every_byte(kernel32: Kernel32, is_large: bool) -> None:
    kernel32.library.EmuGrantLockMemory()
    pool = Pool(
        WindowsBackend(kernel32),
        page_size=2 * MIB if is_large else 64 * KIB,
        huge_pages=is_large,
    )
    walk = Walk(pool, 5)

    for step in steps(walk, 1000):
        if step % 250 == 0:
            pool.trim(keep=4 * MIB)
        pool.check()
        assert kernel32.committed_nbytes == pool.stats().committed_nbytes

    assert pool.stats().recycled_pages > 0
    walk.finish()
    pool.close()


def test_a_pool_at_the_systems_limit_goes_on(kernel32: Kernel32) -> None:
    kernel32.library.EmuSetMemory(GIB, 32 * MIB)
    pool = Pool(WindowsBackend(kernel32), page_size=64 * KIB)
    live = [pool.allocate(4 * MIB) for _ in range(7)]

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(8 * MIB)
    live.pop(2)
    live.pop(2)
    live.append(pool.allocate(8 * MIB))

    native = caught.value.report.native
    assert native is not None
    assert (native.function, native.code) == ("VirtualAlloc", 1455)
    pool.check()
    live.clear()
    pool.close()


@pytest.mark.parametrize("code", [1455, 487], ids=["no memory", "broken"])
def test_whichever_call_fails_the_pool_stays_sound(
    kernel32: Kernel32, code: int
) -> None:
    pool = Pool(WindowsBackend(kernel32), page_size=64 * KIB)
    draw = random.Random(3)
    live: list[Memory] = []
    failures = 0

    for _ in range(300):
        kernel32.fail(draw.randrange(1, 4), code)
        try:
            if live and draw.random() < 0.4:
                live.pop(draw.randrange(len(live))).free()
            elif draw.random() < 0.15:
                pool.trim()
            else:
                live.append(pool.allocate(draw.randrange(1, 600 * KIB)))
        except (OutOfMemoryError, BackendCallError):
            failures += 1
            pool.check()
    kernel32.recover()

    assert failures > 15
    pool.check()
    for memory in live:
        ctypes.memset(memory.address, 1, memory.nbytes)
        memory.free()
    pool.trim()
    assert pool.close().live_nbytes == 0
