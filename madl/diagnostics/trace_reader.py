"""Read traces: ``madl-trace v1``, or any kind of file that holds one.

What the files mean is here; that they cannot do harm is ``trace_lines``. A reason
says which rule a line breaks. Lines that start with ``#`` before the first event are
headers, later ones are comments; empty lines are skipped.
"""

from collections.abc import Callable
from itertools import chain
from pathlib import PurePath

from madl.diagnostics.trace import FIRST_LINE, NBYTES_LIMIT, STREAM_LIMIT, Trace
from madl.diagnostics.trace_builder import BadEventError, TraceBuilder
from madl.diagnostics.trace_csv import CSV_FIRST_LINE, add_csv
from madl.diagnostics.trace_lines import (
    LINE_COUNT_LIMIT,
    Blocks,
    TraceSource,
    numbered_blocks,
    numbered_lines,
    opened,
    path_of,
    shown,
    text_of,
    whole_number,
)
from madl.errors import FileFormatError

_SUFFIXES = (".gz", ".trace", ".csv", ".txt")


def open_trace(source: TraceSource) -> Trace:
    """Return the trace in a file of any kind: its content tells which it is.

    Args:
        source: A ``madl-trace v1``, or a CSV of ``id,lower,upper,size`` as MiniMalloc
            and idealloc use; gzipped or plain; a path, or the bytes themselves.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    return _read(source, {FIRST_LINE: _add_v1, CSV_FIRST_LINE: add_csv})


def read_trace(source: TraceSource) -> Trace:
    """Return the trace in a ``madl-trace v1``, gzipped or plain.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    return _read(source, {FIRST_LINE: _add_v1})


def _read(
    source: TraceSource, kinds: dict[str, Callable[[str, Blocks, TraceBuilder], None]]
) -> Trace:
    path = path_of(source)
    builder = TraceBuilder()
    with opened(source) as file:
        blocks = numbered_blocks(path, file)
        _, lines = next(blocks, (1, [b""]))
        add = kinds.get(lines[0].rstrip().decode(errors="replace"))
        if add is None:
            raise FileFormatError(path, 1, _wrong_kind(lines[0], list(kinds)))
        add(path, chain([(2, lines[1:])], blocks), builder)
    name = PurePath(path).name
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return builder.finish(name)


def _wrong_kind(line: bytes, kinds: list[str]) -> str:
    wanted = f"the first line must be {' or '.join(map(repr, kinds))}"
    if not line:
        return f"{wanted}, but it is empty"
    if b"\0" in line or "\ufffd" in line.decode(errors="replace"):
        return f"{wanted}, but this is a binary file"
    return f"{wanted}, got {shown(line)}"


def _add_v1(path: str, blocks: Blocks, builder: TraceBuilder) -> None:
    """Add the records of a file.

    Nearly all are plain allocations and frees, so the loop adds those itself; every
    other line, right or wrong, is for ``_add_record``. It saves a third of the time.
    """
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
            _add_record(line, builder)
        except BadEventError as bad:
            raise FileFormatError(path, number, str(bad)) from None


def _add_record(line: bytes, builder: TraceBuilder) -> None:
    letter, _, rest = line.partition(b",")
    if letter == b"a":
        _add_allocation(rest.split(b",", 3), builder)
    elif letter == b"f":
        builder.free(whole_number(rest, "id", LINE_COUNT_LIMIT))
    elif letter == b"m":
        builder.mark(text_of(rest, "label"))
    elif line.startswith(b"#"):
        key, colon, value = text_of(line[1:], "header").partition(":")
        if colon and not builder.has_events:
            builder.describe(key.strip(), value.strip())
    elif line:
        raise BadEventError(
            "a record must start with 'a,' (allocate), 'f,' (free) or 'm,' (marker), "
            f"got {shown(line)}"
        )


def _add_allocation(fields: list[bytes], builder: TraceBuilder) -> None:
    if len(fields) < 2:
        raise BadEventError(
            "an allocation must be 'a,<id>,<bytes>[,<stream>[,<tag>]]', "
            f"but it ends after {shown(fields[0])}"
        )
    allocation = whole_number(fields[0], "id", LINE_COUNT_LIMIT)
    if allocation != len(builder.live):
        raise BadEventError(
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
        raise BadEventError(f"stream must be an integer, got {shown(field)}")
    number = whole_number(digits, "stream", STREAM_LIMIT)
    return -number if field.startswith(b"-") else number
