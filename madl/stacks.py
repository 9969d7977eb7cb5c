"""Capture short tracebacks of the calling program, interned.

None is captured while ``depth`` is 0, the default.
"""

import os
import sys
from types import FrameType
from typing import NamedTuple

MOST_STACKS = 10_000
"""Distinct ones that are kept; later ones are ``TOO_MANY``."""

_OURS = os.path.dirname(__file__) + os.sep

depth = 0
"""Lines of its callers that each allocation remembers: the most that is wanted now."""


class Line(NamedTuple):
    """A line of a program that was on the way to an allocation.

    Attributes:
        filename: The file, as the interpreter names it.
        number: The line in it, from 1.
        function: The function that it is in.
    """

    filename: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.number}"


Stack = tuple[Line, ...]
"""The line that allocated first, then its callers."""


def told(stack: Stack) -> list[str]:
    """Return a stack as people read it, a text for each line."""
    return [f"{line} in {line.function}" for line in stack]


TOO_MANY: Stack = (Line("(too many different lines)", 0, ""),)

_kept: dict[Stack, Stack] = {}


def remember(lines: int) -> None:
    """Let each allocation remember so many lines of its callers from now on."""
    global depth  # read on every watched allocation
    depth = lines


def caller() -> FrameType | None:
    """Return the innermost frame that is not madl's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


def levels() -> int:
    """Return the ``stacklevel`` of a warning that names the caller of madl's code."""
    count, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_OURS):
        count, frame = count + 1, frame.f_back
    return count


def capture(least: int = 0) -> Stack:
    """Return the lines that lead to here, without those of madl.

    Args:
        least: Lines at least, also while ``depth`` is less.
    """
    most = max(depth, least)
    lines: list[Line] = []
    frame = caller()
    while frame is not None and len(lines) < most:
        code = frame.f_code
        # A signal may come between two lines, where a frame has no number.
        number = frame.f_lineno or code.co_firstlineno
        lines.append(Line(code.co_filename, number, code.co_name))
        frame = frame.f_back
    stack = tuple(lines)
    if stack not in _kept and len(_kept) >= MOST_STACKS:
        return TOO_MANY
    return _kept.setdefault(stack, stack)
