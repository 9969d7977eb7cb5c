"""Other Pythons on this machine."""

import platform

from tools.portability import roots, suite
from tools.portability.outcome import SkippedError


def cpython_3_14() -> str:
    """Run a smoke test and a replay on the newest CPython of Debian."""
    if platform.machine() != "x86_64":
        raise SkippedError("unpacked for x86_64 only")
    packages = ("python3.14-minimal", "libpython3.14-stdlib", "libc6")
    folder = roots.root("cpython-3.14", "amd64", "sid", packages)
    loader = "usr/lib64/ld-linux-x86-64.so.2"
    python = roots.make_native(folder, "python3.14", loader, "x86_64-linux-gnu")
    platforms = tuple(f"manylinux_2_{minor}_x86_64" for minor in (17, 28, 31, 34))
    site = roots.wheels("cpython-3.14-wheels", "3.14", platforms, *suite.TESTS, "numpy")
    seen = suite.run_smoke([python], site)
    replayed = suite.run_replay([python], site)
    return f"{seen}; {replayed}; {suite.run_tests([python], site)}"


def pypy() -> str:
    """Say why madl does not run there."""
    raise SkippedError("madl counts references to a view; PyPy has no sys.getrefcount")
