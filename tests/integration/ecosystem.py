"""Pages of the documentation and examples, as programs that end well."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
EXAMPLES = ROOT / "examples"


def code_of(page: str) -> str:
    """Return the code of a how-to that is meant to run anywhere."""
    text = (PAGES / page).read_text("utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def output_of(*program: str) -> str:
    """Return what a program prints; it has to end well, and in silence otherwise."""
    done = subprocess.run(
        [sys.executable, "-P", *program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
