"""Programs that start processes of their own: run from a file, as theirs are."""

import subprocess
import sys
import tempfile
from pathlib import Path


def run_as_file(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code as a main module that children can import."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(code)
        return subprocess.run(
            [sys.executable, path, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
