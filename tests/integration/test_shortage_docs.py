"""The code of the how-tos about running out of memory runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
PRINTED = {
    "find-why-it-ran-out": "True\n['weights', 'cache']\nTrue\n{}\n",
    "find-a-leak": (
        "(('loss', (8192, 2)),)\n"
        "  4.0 KiB in 1, allocated at\n"
        "loss 4096 1 2\n"
        "loss 4096 1 2\n"
        "loss 4096 1 1\n"
        "memory of 512 B was dropped without free()\n"
        "1835099244 1048576\n"
    ),
    "bound-a-jobs-memory": (
        "TagLimit(name='model', limit_nbytes=8388608, live_nbytes=5242880)\n"
        "True\n"
        "SoftLimitWarning - cpu: a pool passed the soft limit of 32.0 MiB\n"
        "[True, False, False, False]\n"
        "b'\\x00\\x00\\x00'\n"
    ),
}

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="tests run without the documentation"
)


@pytest.mark.parametrize("page", PRINTED)
def test_the_code_of_the_page_runs(page: str, tmp_path: Path) -> None:
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    script = tmp_path / "page.py"
    script.write_text("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))

    # In a process of its own: limits of a device count all pools that there are.
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout
    if page == "find-why-it-ran-out":  # the report has the machine's own figures
        report, _, printed = printed.partition("a limit of 72.0 MiB.\n")
        assert "cannot place 20.0 MiB" in report
    assert printed == PRINTED[page]
