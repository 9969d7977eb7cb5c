"""Without Dask there is one error, which names what to install."""

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["distributed"] = None
import madl.integrations.dask
"""


def test_without_dask_the_import_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )

    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: madl.integrations.dask needs Dask's distributed ("
    )
    assert last.endswith("; pip install 'madl[dask]'")
