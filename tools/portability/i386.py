"""32-bit x86, natively: Debian's Python on a 64-bit kernel that runs both."""

import platform

from tools.portability import roots, suite
from tools.portability.outcome import SkippedError
from tools.portability.shell import cache


def main() -> str:
    """Run the tests, a smoke test and a replay."""
    if platform.machine() != "x86_64":
        raise SkippedError(f"the machine is {platform.machine()}, not x86_64")
    roots_folder = roots.root(
        "i386", "i386", "bookworm", (*roots.PYTHON, "python3-numpy")
    )
    loader = "lib/i386-linux-gnu/ld-linux.so.2"
    python = roots.make_native(roots_folder, "python3.11", loader, "i386-linux-gnu")
    platforms = tuple(f"manylinux_2_{minor}_i686" for minor in (17, 28, 31, 34))
    site = roots.wheels("i386-wheels", "3.11", platforms, *suite.TESTS)
    assert cache() in python.parents
    seen = suite.run_smoke([python], site)
    replayed = suite.run_replay([python], site)
    passed = suite.run_tests([python], site)
    return f"{seen}; {replayed}; {passed}"
