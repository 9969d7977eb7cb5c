"""Hypothesis profiles. HYPOTHESIS_PROFILE chooses; else CI takes ci, others dev."""

import os
import sys

from hypothesis import settings

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
