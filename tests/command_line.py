"""The command ``madl``, in a process of its own or in this one."""

import os
import subprocess
import sys

import pytest

from madl import cli
from madl.settings.known import SETTINGS

SHAPES_OUTPUT = {
    "COLUMNS",
    "FORCE_COLOR",
    "NO_COLOR",
    "PYTHONUTF8",
    "TTY_COMPATIBLE",
    *(setting.variable for setting in SETTINGS.values()),
}
ENVIRONMENT = {
    **{name: text for name, text in os.environ.items() if name not in SHAPES_OUTPUT},
    "PYTHONIOENCODING": "utf-8",
}


def madl(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``madl``; environment variables are added."""
    return subprocess.run(
        [sys.executable, "-m", "madl", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**ENVIRONMENT, **environment},
    )


def status_of(*arguments: str) -> int:
    """Run ``madl`` in this process; return its exit status."""
    with pytest.raises(SystemExit) as caught:
        cli.main([*arguments])
    return int(caught.value.code or 0)
