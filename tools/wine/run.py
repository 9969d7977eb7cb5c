"""Run tests of the checkout in a real CPython for Windows, under wine.

    python tools/wine/run.py             where Windows differs, and some commands
    python tools/wine/run.py ARGUMENTS   pytest with these arguments only

The first run installs wine and the interpreter, see install.py; TEST_MADL_WINE_CACHE
says where, if not in the user's cache.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

from install import Wine, install, set_path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHARING = ("memory", "processes")
ABOUT_FILES = (
    "diagnostics/test_recording",
    "diagnostics/traces/test_journal",
    "diagnostics/traces/test_whole_files",
    "diagnostics/traces/test_writer",
    "spilling/test_spilling",
)
SUITES = (
    "tests/backends",
    "tests/unit/hotpath",
    *(f"tests/processes/test_shared_{name}.py" for name in SHARING),
    *(
        f"tests/unit/{name}.py"
        for name in ("memory/test_memory", "pool/test_pool", *ABOUT_FILES)
    ),
)
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "known_differences")
COMMANDS = (
    (*PYTEST, *SUITES),
    ("-m", "madl", "info"),
    ("-m", "madl", "replay", "--example", "resnet50-train"),
    ("-m", "madl", "replay", "--example", "resnet50-train", "--device", "cpu"),
)
TIMEOUT_S = 900


def main() -> int:
    """Run each command; return the first exit status that is not 0."""
    started = time.monotonic()
    wine = install()
    set_path(wine, ROOT, HERE)
    ready = time.monotonic()
    wine.start_server()
    try:
        commands = [(*PYTEST, *sys.argv[1:])] if sys.argv[1:] else COMMANDS
        status = next(filter(None, (_run(wine, each) for each in commands)), 0)
    finally:
        wine.end_server()
    installed, ran = ready - started, time.monotonic() - ready
    print(f"{installed:.0f} s to install, {ran:.0f} s to run")
    return status


def _run(wine: Wine, arguments: tuple[str, ...]) -> int:
    print("+ python", *arguments, flush=True)
    # -B: Windows leaves no byte code in the checkout. Output has to be a pipe, since
    # wine has no handle for a file that it was started with.
    process = subprocess.Popen(
        ["wine", str(wine.python), "-B", *arguments],
        cwd=ROOT,
        env={"HYPOTHESIS_PROFILE": "dev", **wine.environment},  # whatever CI takes
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    alarm = threading.Timer(TIMEOUT_S, process.kill)
    alarm.start()
    for line in process.stdout:
        sys.stdout.write(line.decode("utf-8", "replace").replace("\r\n", "\n"))
        sys.stdout.flush()
    alarm.cancel()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
