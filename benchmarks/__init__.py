"""Questions with numbers as answers: ``python -m benchmarks`` asks them all.

Peers are measured in the same run, in turns with madl: on a shared machine a figure
means nothing alone, and only ratios of one run are compared with what is promised.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _put_checkout_last() -> None:
    """Let an installed madl win over the checkout, which is never compiled."""
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    sys.path[:] = [*elsewhere, str(ROOT)]


_put_checkout_last()
