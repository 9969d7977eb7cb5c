"""The suite of the CUDA backend; ``tests/backends/test_cuda.py`` runs it.

It has a process of its own, with a driver that is real or emulated: what a driver has
done to a process is not undone.
"""

import gc
import os
from collections.abc import Iterator

import pytest

from tests.backends.cuda.emulator import Emulator

DRIVER = os.environ.get("TEST_MADL_CUDA_SUITE")
collect_ignore_glob = [] if DRIVER else ["test_*.py"]


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """On a real driver, leave out what only the emulated one can be told to do."""
    if DRIVER != "real":
        return
    left_out = [
        item for item in items if "emulator" in getattr(item, "fixturenames", ())
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def emulator() -> Emulator:
    return Emulator()


@pytest.fixture(autouse=True)
def _gives_all_back() -> Iterator[None]:
    """Fail a test that misuses the emulated driver, or leaves something with it."""
    if DRIVER != "emulated":
        yield
        return
    emulator = Emulator()
    emulator.forget_misuses()
    before = emulator.left()
    yield
    gc.collect()
    emulator.recover()
    emulator.shut_down(is_down=False)
    emulator.mend()
    emulator.leave()
    emulator.set(lazy=0, memory=1 << 30, addresses=1 << 45, host=1 << 34, concurrent=1)
    emulator.set(pages=1, pools=1, managed=1)
    emulator.run()
    assert emulator.left() == before
    assert emulator.misuses() == []
