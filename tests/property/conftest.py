"""What makes thousands of steps quick."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _little_to_collect() -> Iterator[None]:
    """Let the collector, which a pool runs before it gives up, see the pool's only."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
