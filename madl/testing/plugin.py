"""pytest plugin, loaded by its entry point: the fixture ``madl_no_leaks``.

It is imported before anything that is measured or rewritten, so it imports nothing of
madl until the fixture is used.
"""

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from madl.testing.leaks import LeakWatch

_HAS_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the fixture."""
    parser.addoption(
        "--madl-stacks",
        type=int,
        default=4,
        metavar="N",
        help="lines of each traceback that madl_no_leaks shows (4; 0 for none)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test did not pass: its traceback keeps what it held."""
    report = yield
    if not report.passed:
        item.stash[_HAS_FAILED] = True
    return report


@pytest.fixture
def madl_no_leaks(request: pytest.FixtureRequest) -> "Iterator[LeakWatch]":
    """Fail a test that leaves memory live in a pool, and say what.

    Every device's default pool is watched, those made in the test too. Other pools are
    watched from ``madl_no_leaks.watch(pool)`` on. A test that fails is not judged.
    Allocations in it remember ``--madl-stacks`` lines, and cost more.
    """
    from madl.diagnostics.stacks import keep_stacks
    from madl.testing.leaks import LeakWatch

    depth = request.config.getoption("--madl-stacks")
    watch = LeakWatch()
    with keep_stacks(depth) if depth else contextlib.nullcontext():
        yield watch
    if not request.node.stash.get(_HAS_FAILED, False):
        text = watch.describe_leaks()
        if text:
            pytest.fail(f"{request.node.name} {text}", pytrace=False)
