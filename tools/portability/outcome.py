"""What became of one target."""

import time
from collections.abc import Callable
from typing import NamedTuple


class SkippedError(Exception):
    """A target that cannot run here; the text says why."""


class FailedError(Exception):
    """A target that ran, and did not pass; the text says what."""


class Outcome(NamedTuple):
    """One line of the table."""

    target: str
    verdict: str
    """``passed``, ``failed`` or ``skipped``."""
    detail: str
    seconds: float


def attempt(name: str, target: Callable[[], str]) -> Outcome:
    """Run a target, which returns what it saw, and say what became of it."""
    start = time.monotonic()
    try:
        verdict, detail = "passed", target()
    except SkippedError as error:
        verdict, detail = "skipped", str(error)
    except FailedError as error:
        verdict, detail = "failed", str(error)
    return Outcome(name, verdict, detail, time.monotonic() - start)
