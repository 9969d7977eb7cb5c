"""Build what an index gets, look at each file, and try each wheel as its users will.

``python -m tools.release [FOLDER]``: dist by default. It has to be empty, or it is left
as it is. The sdist comes first, and all wheels from it: one of pure Python, and where
the system is Linux a compiled one for each CPython that is found.
"""

import sys
from pathlib import Path

from tools.release import build, users
from tools.release.command import CHECKOUT, run


def look_at(folder: Path) -> None:
    """Have others' tools, and the project's own tests, look at what was built."""
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    wheels = [path for path in files if path.suffix == ".whl"]
    run("check-wheel-contents", "--toplevel", "madl", *wheels)
    tests = CHECKOUT / "tests" / "architecture" / "test_distributions.py"
    run(sys.executable, "-m", "pytest", tests, env={"TEST_MADL_DIST": str(folder)})


def main(folder: Path) -> int:
    """Build, look and try; return the exit status."""
    if folder.exists() and any(folder.iterdir()):
        sys.stderr.write(f"{folder} is not empty; what is there could be uploaded\n")
        return 2
    pythons = build.pythons()
    sdist = build.sdist(folder)
    pure = build.pure_wheel(sdist, folder)
    built = {python: build.compiled_wheel(sdist, folder, python) for python in pythons}
    look_at(folder)
    for python, wheel in built.items():
        users.try_wheel(pure, python)
        if wheel:
            users.try_wheel(wheel, python)
    users.try_extras(pure)
    for path in sorted(folder.iterdir()):
        sys.stdout.write(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(*(sys.argv[1:] or ["dist"])).resolve()))
