"""Commands that are shown, and have to end well."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def run(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    folder: Path = CHECKOUT,
) -> None:
    """Show a command and run it.

    Raises:
        CalledProcessError: It did not end well.
    """
    sys.stdout.write(f"\n$ {' '.join(map(str, command))}\n")
    sys.stdout.flush()
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=folder,
        check=True,
    )
