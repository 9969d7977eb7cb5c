"""How long does ``import madl`` take?"""

import subprocess
import sys
import tempfile
from functools import partial

from benchmarks.answer import Answer, Row, Table
from benchmarks.timing import in_turns, ratio, spread

SCRIPT = """\
import sys, time
sys.path[:] = {paths!r}
started = time.process_time()
import {module}
print(time.process_time() - started)
"""
MODULES = ("madl", "numpy")


def milliseconds(module: str) -> float:
    """Return the CPU time of an import in a new process."""
    script = SCRIPT.format(paths=[*filter(None, sys.path)], module=module)
    printed = subprocess.run(
        # No site: what .pth files import would not count, here more and there less.
        [sys.executable, "-I", "-S", "-c", script],
        cwd=tempfile.gettempdir(),
        check=True,
        capture_output=True,
        text=True,
    )
    return float(printed.stdout) * 1e3


def run(*, quick: bool) -> Answer:
    """Import in turns, each time in a new process."""
    measures = {module: partial(milliseconds, module) for module in MODULES}
    results = in_turns(measures, rounds=9 if quick else 25)
    rows: list[Row] = [(f"import {one}", spread(results[one])) for one in MODULES]
    share = ratio(results["madl"], results["numpy"])
    return Answer(
        "How long does `import madl` take?",
        (Table("ms of CPU time, median (least-most)", ("", "import"), tuple(rows)),),
        {"import madl over import numpy": share.median},
    )
