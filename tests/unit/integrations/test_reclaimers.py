"""Caches of other libraries as memory that a pool can ask for.

The modules here are stand-ins with the few functions that are called; that the real
PyTorch and CuPy have these needs a device with CUDA.
"""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from madl import Memory, OutOfMemoryError, Pool
from madl.integrations.reclaimers import release_other_caches

MIB = 1 << 20


class StandIn(ModuleType):
    """A module that has what it is given, and fails for any other attribute."""

    def __init__(self, name: str, **attributes: object) -> None:
        super().__init__(name)
        self.__dict__.update(attributes)


@pytest.fixture(autouse=True)
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def stand_in_torch(
    monkeypatch: pytest.MonkeyPatch,
    empty_cache: Callable[[], object],
    *,
    is_initialized: bool = True,
) -> None:
    cuda = StandIn(
        "torch.cuda", is_initialized=lambda: is_initialized, empty_cache=empty_cache
    )
    monkeypatch.setitem(sys.modules, "torch", StandIn("torch", cuda=cuda))


def stand_in_cupy(monkeypatch: pytest.MonkeyPatch, ran: list[str]) -> None:
    def pool(name: str) -> Callable[[], SimpleNamespace]:
        return lambda: SimpleNamespace(free_all_blocks=lambda: ran.append(name))

    cupy = StandIn(
        "cupy",
        get_default_memory_pool=pool("device"),
        get_default_pinned_memory_pool=pool("pinned"),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_the_caches_of_both_libraries_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    stand_in_torch(monkeypatch, lambda: ran.append("torch"))
    stand_in_cupy(monkeypatch, ran)

    release_other_caches(MIB)

    assert ran == ["torch", "device", "pinned"]


def test_cuda_is_not_initialized_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    stand_in_torch(monkeypatch, lambda: ran.append("torch"), is_initialized=False)

    release_other_caches(MIB)

    assert ran == []


def test_neither_library_is_imported() -> None:
    release_other_caches(MIB)

    assert not {"torch", "cupy"} & set(sys.modules)


def test_a_failure_of_one_library_does_not_stop_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("a capture is under way")

    ran: list[str] = []
    stand_in_torch(monkeypatch, fail)
    stand_in_cupy(monkeypatch, ran)

    with pytest.raises(RuntimeError, match="a capture is under way"):
        release_other_caches(MIB)

    assert ran == ["device", "pinned"]


def test_a_pool_that_runs_out_succeeds_with_what_a_cache_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool("sim", limit=4 * MIB)
    cache: list[Memory] = [pool.allocate(4 * MIB)]
    stand_in_torch(monkeypatch, cache.clear)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)
    pool.on_out_of_memory(release_other_caches)

    memory = pool.allocate(MIB)

    assert memory.nbytes == pool.stats().live_nbytes == MIB
    assert cache == []
