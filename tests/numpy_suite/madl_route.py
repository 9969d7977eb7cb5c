"""A pytest plugin: NumPy's arrays come from a pool while NumPy's own tests run.

``pytest -p madl_route --pyargs numpy._core.tests.test_numeric``, with this folder in
``PYTHONPATH``, as ``nox -s numpy_suite`` does.
"""

import gc
import os

import pytest

from madl import Pool
from madl.integrations.numpy import route

POOL = Pool("cpu")


def pytest_configure() -> None:
    """Route from here on: all tests run in this thread."""
    route(os.environ.get("TEST_MADL_ROUTE_THRESHOLD", "4 KiB"), POOL).install()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session that left the pool broken, or never took from it."""
    gc.collect()
    POOL.check()
    if POOL.stats().allocation_count == 0 and session.testscollected:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what came from the pool."""
    stats = POOL.stats()
    terminalreporter.write_line(
        f"madl: {stats.allocation_count:,} allocations of the pool, "
        f"{stats.live_nbytes:,} bytes live"
    )
