"""No memory of a pool can be executed, at any time, in the kernel's own words."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from madl import Memory, Pool

if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

from madl.backends.cpu import CpuBackend
from madl.backends.host import (
    linux_calls,
    shared_posix,
)
from tests.backends.host import linux_memory

MIB = 1 << 20
EXECUTE = 4


def protections_of(memory: Memory) -> set[str]:
    """Return what the kernel says of all that a memory lies on: ``rw-p``."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop, what = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]  # every line is so
        first, end = memory.address, memory.address + memory.nbytes
        if int(start, 16) < end and first < int(stop, 16):
            found.add(what)
    return found


def pools() -> dict[str, Callable[[], Pool]]:
    return {
        "lazy": lambda: Pool(CpuBackend(_memory=linux_memory())),
        "strict": lambda: Pool(CpuBackend(_memory=linux_memory(is_lazy_allowed=False))),
        "shared": lambda: Pool("shared"),
        "no pooling": lambda: Pool("cpu", pooling=False),
    }


@pytest.mark.parametrize("kind", pools())
def test_the_kernel_lets_nobody_execute_it(kind: str) -> None:
    pool = pools()[kind]()
    held = [pool.allocate(n) for n in (64, 5 * MIB, 30 * MIB)]
    held[1].free()

    found = protections_of(held[0]) | protections_of(held[2])

    assert found == ({"rw-s"} if kind == "shared" else {"rw-p"})
    del held


@pytest.mark.parametrize("kind", pools())
def test_no_call_asks_for_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[int] = set()

    def noting(call: Callable[..., int]) -> Callable[..., int]:
        def noted(*arguments: Any) -> int:  # noqa: ANN401  # a system call's
            asked.add(arguments[2])  # the third of both
            return call(*arguments)

        return noted

    for calls, name in (
        (linux_calls.system, "mmap"),
        (linux_calls.system, "mprotect"),
        (shared_posix._calls, "mmap"),
    ):
        monkeypatch.setattr(calls, name, noting(getattr(calls, name)))

    with pools()[kind]() as pool:
        held = [pool.allocate(n) for n in (64, 5 * MIB, 30 * MIB)]
        del held[::2]
        pool.trim()
        pool.allocate(3 * MIB)
        held.clear()

    assert asked
    assert not any(protection & EXECUTE for protection in asked)
