"""Parse ``madl-trace v1``, the text of a trace, and the stacks in traces as JSON.

Lines that start with ``#`` before the first event are headers, later ones are comments,
but for stacks; empty lines are skipped.
"""

import json

from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.lines import (
    LINE_COUNT_LIMIT,
    Blocks,
    RefusedError,
    numbered_lines,
    shown,
    text_of,
    whole_number,
)
from madl.diagnostics.traces.trace import NBYTES_LIMIT, STREAM_LIMIT
from madl.errors import FileFormatError
from madl.stacks import Line, Stack

DEPTH_LIMIT = 64
"""Lines of one stack at most."""
_WRONG_STACK = "a stack must be a list of [file, line, function]"


def add_text(path: str, blocks: Blocks, builder: TraceBuilder) -> None:
    """Add the records of a file.

    The loop adds plain allocations and frees itself, which saves a third of the time;
    every other line, right or wrong, is for ``_add_record``.
    """
    stacks: dict[int, Stack] = {}
    live = builder.live
    add_operation = builder.operations.append
    add_nbytes = builder.nbytes_of.append
    for number, line in numbered_lines(blocks):
        letter, _, rest = line.partition(b",")
        try:
            if letter == b"f":
                if rest.isdigit() and live[freed := int(rest)]:
                    live[freed] = 0
                    add_operation(~freed)
                    continue
            elif letter == b"a":
                digits, _, size = rest.partition(b",")
                if (digits.isdigit() and int(digits) == len(live)) and (
                    size.isdigit() and (nbytes := int(size)) < NBYTES_LIMIT
                ):
                    add_nbytes(nbytes)
                    add_operation(len(live))
                    live.append(1)
                    continue
        except (IndexError, ValueError):
            pass  # an unknown id, or thousands of digits; it is refused below
        try:
            _add_record(line, builder, stacks)
        except RefusedError as bad:
            raise FileFormatError(path, number, str(bad)) from None


def _add_record(line: bytes, builder: TraceBuilder, stacks: dict[int, Stack]) -> None:
    letter, _, rest = line.partition(b",")
    if letter == b"a":
        _add_allocation(rest.split(b",", 3), builder)
    elif letter == b"f":
        builder.free(whole_number(rest, "id", LINE_COUNT_LIMIT))
    elif letter == b"m":
        builder.mark(text_of(rest, "label"))
    elif line.startswith(b"#s,"):
        _add_stack(line, builder, stacks)
    elif line.startswith(b"#"):
        key, colon, value = text_of(line[1:], "header").partition(":")
        if colon and not builder.has_events:
            builder.describe(key.strip(), value.strip())
    elif line:
        raise RefusedError(
            "a record must start with 'a,' (allocate), 'f,' (free) or 'm,' (marker), "
            f"got {shown(line)}"
        )


def _add_stack(line: bytes, builder: TraceBuilder, stacks: dict[int, Stack]) -> None:
    """Note where the next allocation was asked for; the first time, what that is."""
    _, digits, *text = line.split(b",", 2)
    number = whole_number(digits, "stack", LINE_COUNT_LIMIT)
    if text:
        stacks[number] = stack_from_text(text_of(text[0], "stack"), builder)
    elif number not in stacks:
        raise RefusedError(f"stack {number} has not been described")
    builder.stack_of_next(stacks[number])


def _add_allocation(fields: list[bytes], builder: TraceBuilder) -> None:
    if len(fields) < 2:
        raise RefusedError(
            "an allocation must be 'a,<id>,<bytes>[,<stream>[,<tag>]]', "
            f"but it ends after {shown(fields[0])}"
        )
    allocation = whole_number(fields[0], "id", LINE_COUNT_LIMIT)
    if allocation != len(builder.live):
        raise RefusedError(
            f"ids must count 0, 1, 2, ...: the next is {len(builder.live)}, "
            f"got {allocation}"
        )
    builder.allocate(
        whole_number(fields[1], "nbytes", NBYTES_LIMIT),
        stream=_stream(fields[2]) if len(fields) > 2 else 0,
        tag=text_of(fields[3], "tag") if len(fields) > 3 else None,
    )


def _stream(field: bytes) -> int:
    """Return a stream; some programs number theirs below zero."""
    digits = field.removeprefix(b"-")
    if not digits.isdigit():
        raise RefusedError(f"stream must be an integer, got {shown(field)}")
    number = whole_number(digits, "stream", STREAM_LIMIT)
    return -number if field.startswith(b"-") else number


def check_depth(depth: int) -> int:
    """Return how many lines to take of a stack, or raise if there cannot be so many."""
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


def stack_from_text(text: str, builder: TraceBuilder) -> Stack:
    """Return the stack in a text that ``stack_to_text`` made, and count its texts.

    Raises:
        RefusedError: It is no stack, or one text too much for the trace.
    """
    try:
        lines = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError(_WRONG_STACK) from None
    stack = stack_from_lists(lines)
    texts = (text for file, _, function in stack for text in (file, function))
    builder.count_text(*texts)
    return stack


def stack_from_lists(lines: object) -> Stack:
    """Return the stack in what JSON made of it, or raise RefusedError."""
    if not isinstance(lines, list) or not all(map(_is_line, lines)):
        raise RefusedError(_WRONG_STACK)
    if len(lines) > DEPTH_LIMIT:
        raise RefusedError(f"a stack has at most {DEPTH_LIMIT} lines, got {len(lines)}")
    return tuple(Line(*line) for line in lines)


def _is_line(line: object) -> bool:
    if not isinstance(line, list) or len(line) != 3:
        return False
    file, number, function = line
    are_texts = isinstance(file, str) and isinstance(function, str)
    return are_texts and type(number) is int and 0 <= number < 1 << 31
