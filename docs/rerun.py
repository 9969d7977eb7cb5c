"""Run a page as a reader would, and put what it prints into it.

``python -m docs.rerun PAGE FOLDER`` runs it in the folder and writes the page anew. A
``python`` block that starts with a comment of a file's name is saved as that file;
``console`` blocks are run; the ``text`` block after one is what it printed. What a
machine decides, as times, stays as the page has it.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
PROGRAMS = {"madl": ("-m", "madl"), "python": ()}
BY_MACHINE = ("│ core", "│ ns per event", "│ of which the loop")
"""Rows of tables whose figures differ from one machine to another."""
TIMEOUT_S = 60


def rerun(page: str, folder: Path) -> str:
    """Run a page in a folder; return it with what was printed.

    Raises:
        RuntimeError: A command did not end, or is none of ``PROGRAMS``.
    """
    printed: str | None = None

    def run_block(found: re.Match[str]) -> str:
        nonlocal printed
        language, content = found.groups()
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", content)
            if name:
                (folder / name[1]).write_text(content, "utf-8")
        elif language == "console":
            printed = "".join(_output_of(line, folder) for line in content.splitlines())
        elif language == "text" and printed is not None:
            content, printed = _merged(content, printed), None
        return f"```{language}\n{content}```\n"

    return BLOCK.sub(run_block, page)


def _output_of(command: str, folder: Path) -> str:
    program, *arguments = shlex.split(command)
    if program not in PROGRAMS:
        raise RuntimeError(f"{command}: only {', '.join(PROGRAMS)} can be run")
    # The checkout, which the current folder may be, must not hide what is installed.
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        [sys.executable, *PROGRAMS[program], *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    printed = ran.stdout.replace(f"{folder.resolve()}{os.sep}", "")
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def _merged(before: str, printed: str) -> str:
    """Return what was printed; what was there if a machine decides the difference."""
    return before if _what_is_said(before) == _what_is_said(printed) else printed


def _what_is_said(text: str) -> list[str]:
    """Return the lines without the rows that a machine decides, and without widths."""
    lines = [re.sub(r"([ ─])\1+", r"\1", line).strip() for line in text.splitlines()]
    return [line for line in lines if not line.startswith(BY_MACHINE)]


def main() -> None:
    """Write the page that the arguments name."""
    page, folder = Path(sys.argv[1]), Path(sys.argv[2])
    done = rerun(page.read_text("utf-8"), folder)
    page.write_text(done, "utf-8", newline="\n")


if __name__ == "__main__":
    main()
