"""Run madl on other machines than this one, and print what passed and what did not.

``python -m tools.portability [TARGET ...]``: all of them by default. What cannot run
here is skipped, with the reason, and never counted as passed. Downloads are kept in a
cache; see ``shell.cache``. TEST_MADL_PORTABILITY_TESTS chooses what of tests/unit
and tests/property runs beside the tests of the host's memory.
"""

import sys
from collections.abc import Callable
from functools import partial

from tools.portability import i386, interpreters, pyodide, seccomp, user_mode, vm16k
from tools.portability.outcome import Outcome, attempt

TARGETS: dict[str, Callable[[], str]] = {
    "i386": i386.main,
    "seccomp": seccomp.main,
    "arm64-16k": vm16k.main,
    "s390x": partial(user_mode.main, "s390x"),
    "armhf": partial(user_mode.main, "armhf"),
    "riscv64": partial(user_mode.main, "riscv64"),
    "pyodide": pyodide.main,
    "cpython-3.14": partial(interpreters.cpython, "3.14"),
    "cpython-3.15": partial(interpreters.cpython, "3.15"),
    "pypy": interpreters.pypy,
}


def show(outcomes: list[Outcome]) -> None:
    """Print the table, then the whole text of each failure."""
    for outcome in outcomes:
        first = outcome.detail.partition("\n")[0]
        sys.stdout.write(
            f"{outcome.target:13}{outcome.verdict:9}{outcome.seconds:6.0f} s  {first}\n"
        )
    for outcome in outcomes:
        if outcome.verdict == "failed":
            sys.stdout.write(f"\n{outcome.target} failed: {outcome.detail}\n")


def main(names: list[str]) -> int:
    """Run targets by their names; return the exit status."""
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        sys.stderr.write(f"targets are {', '.join(TARGETS)}, got {unknown[0]!r}\n")
        return 2
    outcomes = []
    for name in names or TARGETS:
        outcomes.append(attempt(name, TARGETS[name]))
        sys.stdout.write(f"{name}: {outcomes[-1].verdict}\n")
        sys.stdout.flush()
    sys.stdout.write("\n")
    show(outcomes)
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
