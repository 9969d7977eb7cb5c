"""What is run in a target: tests of madl where pytest runs, else a smoke test."""

import json
import os
import re
from pathlib import Path

from tools.portability.outcome import FailedError
from tools.portability.shell import CHECKOUT, run

TESTS = ("pytest>=9,<10", "pytest-timeout", "hypothesis", "click", "rich", "pluggy")
COMMAND_LINE = ("click", "rich", "pluggy")
SMOKE = Path(__file__).with_name("smoke.py")
EXAMPLE = "resnet50-train"
"""The smallest trace that ships."""

CHOSEN = os.environ.get("TEST_MADL_PORTABILITY_TESTS")
TESTS_OF_ALL = tuple((CHOSEN or "tests/unit tests/property").split())
"""What runs beside the tests of the host's memory."""
WITHOUT_NUMPY = tuple(test for test in TESTS_OF_ALL if "/unit" not in test)
"""Most files of unit/ make arrays."""
WITH_ARRAYS = (
    "tests/property/test_damaged_files.py",  # its pictures are drawn with NumPy
    "tests/backends/test_fault_sweeps.py",
    "tests/backends/test_system_faults.py",
    "tests/backends/test_windows_fault_sweeps.py",
    "tests/backends/emulated/test_fault_sweeps.py",
)
"""Files that make arrays, of those folders that are tested without NumPy."""
DEVICES = ("cuda", "opencl")
"""Their libraries are this machine's own, and so are their tests."""


def tests_of_the_host() -> list[str]:
    """Return what is in tests/backends but for other devices."""
    files = sorted((CHECKOUT / "tests" / "backends").glob("test_*.py"))
    return [
        "tests/backends/emulated",
        *(
            str(file.relative_to(CHECKOUT))
            for file in files
            if not any(device in file.name for device in DEVICES)
        ),
    ]


def environment(*packages: Path) -> dict[str, str]:
    """Return what lets a foreign Python find madl's checkout and packages."""
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT, *packages))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_tests(
    python: list[str | Path],
    *packages: Path,
    deselected: tuple[str, ...] = (),
    has_numpy: bool = True,
) -> str:
    """Run madl's tests; return how many passed."""
    tests = [*(TESTS_OF_ALL if has_numpy else WITHOUT_NUMPY), *tests_of_the_host()]
    options = ("-q", "-p", "no:cacheprovider", "--tb=short")
    left_out = [f"--deselect={test}" for test in deselected]
    if not has_numpy:
        tests = [test for test in tests if test not in WITH_ARRAYS]
        left_out += [f"--ignore={file}" for file in WITH_ARRAYS]  # of whole folders
    said = run(
        [*python, "-m", "pytest", *options, *left_out, *tests],
        timeout_s=900,
        env=environment(*packages),
    )
    found = re.search(r"^\d+ passed.*$", said, re.MULTILINE)
    if found is None:
        raise FailedError(f"no test ran:\n{said[-1000:]}")
    return found[0].rpartition(" in ")[0]


def run_smoke(python: list[str | Path], *packages: Path, timeout_s: int = 300) -> str:
    """Use a pool for real; return what the machine is like."""
    env = environment(*packages)
    said = run([*python, SMOKE], timeout_s=timeout_s, env=env)
    return said.strip().rpartition("\n")[2]


def run_replay(python: list[str | Path], *packages: Path, timeout_s: int = 300) -> str:
    """Replay the smallest example over the host's memory; return what it took."""
    replay = ("-m", "madl", "replay", "--example", EXAMPLE, "--device", "cpu", "--json")
    env = environment(*packages)
    report = json.loads(run([*python, *replay], timeout_s=timeout_s, env=env))
    return f"replay {report['events']} events, {report['committed_over_live']:.3f}"
