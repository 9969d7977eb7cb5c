"""Hypothesis profiles. HYPOTHESIS_PROFILE chooses; else CI takes ci, others dev.

And what the sweeps of faults have counted, after the summary of a run.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.tally import tally

# No deadline: how long one example takes is the machine's business, not the test's.
settings.register_profile("all", deadline=None, print_blob=True)
everywhere = settings.get_profile("all")
settings.register_profile("dev", everywhere, max_examples=50)
settings.register_profile("ci", everywhere, max_examples=300, derandomize=True)
settings.register_profile("nightly", everywhere, max_examples=10_000)

settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)

if sys.platform == "win32":  # they load modules that are for other systems
    collect_ignore = [
        "backends/emulated",
        "backends/test_cpu.py",
        "backends/test_fallback.py",
        "backends/test_host_limits.py",
    ]


@pytest.fixture(scope="session", autouse=True)
def _sigint_is_not_ignored() -> Iterator[None]:
    """Give SIGINT its handler where the run inherited that it is ignored.

    A shell without job control starts what runs in the background so, some CI runners
    too. Children inherit SIG_IGN, and Python then installs no handler, so a SIGINT that
    a test sends would be dropped; a handler becomes the default action on exec.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if is_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="module", autouse=True)
def _no_collection_looks_at_the_tests() -> None:
    """Leave to the collector what a file makes itself, not all that is there before.

    Pools collect garbage before they refuse anything, some tests thousands of times:
    with the traces that other files keep it would take minutes.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many faults there were, if any: ``nox -s faults`` is for the figures."""
    if tally.faults:
        terminalreporter.write_line(str(tally))
