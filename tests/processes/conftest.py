"""What several of these files need."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
