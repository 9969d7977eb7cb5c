"""The code of the how-tos about running out of memory runs as it is printed."""

from pathlib import Path

import pytest

from tests.pages import code_of, needs_pages
from tests.programs import output_of

PRINTED = {
    "docs/how-to/find-why-it-ran-out.md": "True\n['weights', 'cache']\nTrue\n{}\n",
    "docs/how-to/find-a-leak.md": (
        "(('loss', (8192, 2)),)\n"
        "  4.0 KiB in 1, allocated at\n"
        "loss 4096 1 2\n"
        "loss 4096 1 2\n"
        "loss 4096 1 1\n"
        "memory of 512 B was dropped without free()\n"
        "1835099244 1048576\n"
    ),
    "docs/how-to/find-memory-corruption.md": (
        "overrun weights 1000 1004\n"
        "  allocated at\n"
        "use after free batch 8\n"
        "1 1\n"
        "[nan nan nan]\n"
        "0\n"
    ),
    "docs/how-to/bound-a-jobs-memory.md": (
        "TagLimit(name='model', limit_nbytes=8388608, live_nbytes=5242880)\n"
        "True\n"
        "SoftLimitWarning - cpu: a pool passed the soft limit of 32.0 MiB\n"
        "[True, False, False, False]\n"
        "b'\\x00\\x00\\x00'\n"
    ),
}


@needs_pages
@pytest.mark.parametrize("page", PRINTED)
def test_the_code_of_the_page_runs(page: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(code_of(page), "utf-8")

    # In a process of its own: limits of a device count all pools that there are.
    printed = output_of("-W", "error", script)

    if "cannot place" in printed:  # the report has the machine's own figures
        report, _, printed = printed.partition("a limit of 72.0 MiB.\n")
        assert "cannot place 20.0 MiB" in report
    assert printed == PRINTED[page]
