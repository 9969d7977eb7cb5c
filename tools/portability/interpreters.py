"""Other Pythons on this machine."""

import platform

from tools.portability import roots, suite
from tools.portability.outcome import SkippedError


def cpython(version: str) -> str:
    """Run the tests, a smoke test and a replay on a CPython of Debian's."""
    if platform.machine() != "x86_64":
        raise SkippedError("unpacked for x86_64 only")
    name = f"cpython-{version}"
    packages = (f"python{version}-minimal", f"libpython{version}-stdlib", "libc6")
    folder = roots.root(name, "amd64", "sid", packages)
    loader = "usr/lib64/ld-linux-x86-64.so.2"
    python = roots.make_native(folder, f"python{version}", loader, "x86_64-linux-gnu")
    platforms = tuple(f"manylinux_2_{minor}_x86_64" for minor in (17, 28, 31, 34))
    site = roots.wheels(f"{name}-wheels", version, platforms, *suite.TESTS, "numpy")
    seen = suite.run_smoke([python], site)
    replayed = suite.run_replay([python], site)
    return f"{seen}; {replayed}; {suite.run_tests([python], site)}"


def pypy() -> str:
    """Say why madl does not run there."""
    raise SkippedError("madl counts references to a view; PyPy has no sys.getrefcount")
