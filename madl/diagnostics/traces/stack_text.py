"""Stacks as text, in traces and journals; how deep they may be."""

import json
from collections.abc import Iterator

from madl.stacks import Line, Stack

DEPTH_LIMIT = 64
_WRONG = "a stack must be a list of [file, line, function]"


def check_depth(depth: int) -> int:
    """Return how many lines to take of a stack, if there can be so many.

    Raises:
        TypeError, ValueError: It is no whole number, or out of range.
    """
    if type(depth) is not int:
        raise TypeError(f"stacks must be a number of lines, got {depth!r}")
    if not 0 <= depth <= DEPTH_LIMIT:
        raise ValueError(f"stacks must be from 0 to {DEPTH_LIMIT}, got {depth}")
    return depth


def stack_to_text(stack: Stack, limit_nbytes: int) -> str:
    """Return a stack on one line of ASCII; outer lines go where it gets too long."""
    while True:
        text = json.dumps(stack, separators=(",", ":"))
        if len(text) <= limit_nbytes or not stack:
            return text
        stack = stack[:-1]


def stack_from_text(text: str) -> Stack:
    """Return the stack in a text that ``stack_to_text`` made.

    Raises:
        ValueError: It is no stack.
    """
    try:
        lines = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(_WRONG) from None
    return stack_from_lists(lines)


def stack_from_lists(lines: object) -> Stack:
    """Return the stack in what JSON made of it.

    Raises:
        ValueError: It is no stack.
    """
    if not isinstance(lines, list) or not all(map(_is_line, lines)):
        raise ValueError(_WRONG)
    if len(lines) > DEPTH_LIMIT:
        raise ValueError(f"a stack has at most {DEPTH_LIMIT} lines, got {len(lines)}")
    return tuple(Line(*line) for line in lines)


def texts_of(stack: Stack) -> Iterator[str]:
    """Yield what a stack keeps in memory."""
    for line in stack:
        yield from (line.filename, line.function)


def _is_line(line: object) -> bool:
    if not isinstance(line, list) or len(line) != 3:
        return False
    file, number, function = line
    are_texts = isinstance(file, str) and isinstance(function, str)
    return are_texts and type(number) is int and 0 <= number < 1 << 31
