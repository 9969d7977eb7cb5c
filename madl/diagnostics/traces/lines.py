"""Lines, numbers and names from untrusted files, in bounded memory.

A file is read 64 KiB at a time; the length and the number of its lines are bounded,
so a gzip bomb or a device that never ends costs time, not memory.
"""

import errno
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, cast

from madl.diagnostics.traces.trace import LINE_LIMIT_NBYTES
from madl.errors import FileFormatError

TraceSource = str | os.PathLike[str] | bytes
"""A file's path, or all that a file holds."""

Blocks = Iterable[tuple[int, list[bytes]]]
"""Some thousands of lines, with the number of the first."""

LINE_COUNT_LIMIT = 1 << 31
"""Of a file; ids are below it."""

PICKLE_START = b"\x80"
"""Of protocol 2 or later."""
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_NBYTES = 1 << 20
_SHOWN_LETTERS = 40
_LONGEST_NUMBER = len(str(1 << 64))
_HEXADECIMAL_DIGITS = frozenset(b"0123456789abcdefABCDEF")


class RefusedError(ValueError):
    """Why the content of a file is refused; its reader adds the file and the line."""


def path_of(source: TraceSource) -> str:
    """Return what errors call the source."""
    return "<bytes>" if isinstance(source, bytes) else os.fspath(source)


class UnfinishedLine(bytes):
    """The last line of a file that does not end with one: it may have been cut off."""


def cut_off(line: UnfinishedLine) -> str:
    """Return the note that the last line of a log, whose process died, is left out."""
    return f"the last row is cut off and left out: {shown(line)}"


@contextmanager
def opened(source: TraceSource) -> Iterator[io.BufferedReader]:
    """Open a file, unpacked if its content is gzip.

    Raises:
        FileFormatError: It cannot be opened, read or unpacked, now or in the block.
    """
    path = path_of(source)
    try:
        with _binary(source) as file:
            if file.peek(2)[:2] == _GZIP_MAGIC:
                with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                    yield io.BufferedReader(cast(io.RawIOBase, unpacked))
            else:
                yield file
    except (gzip.BadGzipFile, zlib.error):
        reason = "the gzip data is damaged. Try: copy the file again"
        raise FileFormatError(path, 0, reason) from None
    except EOFError:
        reason = "the gzip data ends too early. Try: copy the whole file again"
        raise FileFormatError(path, 0, reason) from None
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, PermissionError) and os.path.isdir(path):
            reason = os.strerror(errno.EISDIR)  # which Windows does not say
        raise FileFormatError(path, 0, reason) from error


def _binary(source: TraceSource) -> io.BufferedReader:
    if isinstance(source, bytes):
        return io.BufferedReader(io.BytesIO(source))
    return open(source, "rb")


def head_of(source: TraceSource, nbytes: int) -> bytes:
    """Return how the content of a file begins, to choose what reads it from its start.

    Raises:
        FileFormatError: It is a pipe, or cannot be opened, read or unpacked.
    """
    if not isinstance(source, bytes) and Path(source).is_fifo():
        reason = "a pipe cannot be read twice. Try: write it to a file first"
        raise FileFormatError(path_of(source), 0, reason)
    with opened(source) as file:
        return file.read(nbytes)


def numbered_blocks(
    path: str, file: IO[bytes], head: bytes = b""
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of the first of some thousands of lines, and them without ends.

    ``head`` is what has been read of the file already.

    Raises:
        FileFormatError: A line is too long, or there are too many.
    """
    first = 1
    rest = b""
    reads = iter(lambda: file.read(LINE_LIMIT_NBYTES), b"")
    for read in chain([head + next(reads, b"")], reads):
        block = rest + read
        # Only the first line began in an earlier block, so no other can be too long.
        if len(block.partition(b"\n")[0]) > LINE_LIMIT_NBYTES:
            reason = f"the line is longer than {LINE_LIMIT_NBYTES} bytes"
            raise FileFormatError(path, first, reason)
        whole, end, rest = block.rpartition(b"\n")
        if not end:
            continue
        lines = whole.removesuffix(b"\r").replace(b"\r\n", b"\n").split(b"\n")
        if first + len(lines) - 1 > LINE_COUNT_LIMIT:
            reason = f"the file has more than {LINE_COUNT_LIMIT} lines"
            raise FileFormatError(path, LINE_COUNT_LIMIT + 1, reason)
        yield first, lines
        first += len(lines)
    if rest:
        yield first, [UnfinishedLine(rest.removesuffix(b"\r"))]


def numbered_lines(blocks: Blocks) -> Iterator[tuple[int, bytes]]:
    """Return the lines of all blocks, each with its number."""
    # An iterator made in C: a generator would cost a tenth of the reading time.
    return chain.from_iterable(enumerate(lines, first) for first, lines in blocks)


def whole_number(field: bytes, what: str, limit: int) -> int:
    """Return a number that is written in digits only and below ``limit``."""
    if field.isdigit():
        # Python refuses to convert thousands of digits, and zeros count as such.
        digits = field if len(field) <= _LONGEST_NUMBER else field.lstrip(b"0")
        if len(digits) <= _LONGEST_NUMBER and (number := int(digits or b"0")) < limit:
            return number
        raise RefusedError(f"{what} must be below {limit}, got {shown(field)}")
    if field.startswith(b"-") and field[1:].isdigit():
        raise RefusedError(f"{what} must not be negative, got {shown(field)}")
    raise RefusedError(f"{what} must be a whole number, got {shown(field)}")


def hexadecimal(field: bytes, what: str) -> int:
    """Return an address such as ``0x7f00`` or ``(nil)``, of 64 bits at most."""
    digits = b"0" if field == b"(nil)" else field.removeprefix(b"0x")
    if 0 < len(digits) <= 16 and set(digits) <= _HEXADECIMAL_DIGITS:
        return int(digits, 16)
    raise RefusedError(f"{what} must be an address as in 0x7f00, got {shown(field)}")


def text_of(field: bytes, what: str) -> str:
    """Return a text that may be in any language."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise RefusedError(f"{what} must be UTF-8, got {shown(field)}") from None


def shown(field: bytes) -> str:
    """Return the start of a field, fit for an error."""
    text = field[: 4 * _SHOWN_LETTERS].decode(errors="backslashreplace")
    if len(text) <= _SHOWN_LETTERS:
        return repr(text)
    return f"{text[:_SHOWN_LETTERS]!r}..."


def read_whole(source: TraceSource, what: str, most_nbytes: int) -> bytes:
    """Return all that is in a file, which errors call ``what``, unpacked if need be.

    Raises:
        FileFormatError: It is larger, or cannot be opened, read or unpacked.
    """
    # In pieces: read(most_nbytes) would allocate that much, however short the file is.
    pieces, total = [], 0
    with opened(source) as file:
        while total <= most_nbytes and (piece := file.read(_PIECE_NBYTES)):
            pieces.append(piece)
            total += len(piece)
    if total > most_nbytes:
        reason = f"{what} has at most {most_nbytes} bytes"
        raise FileFormatError(path_of(source), 0, reason)
    return b"".join(pieces)


def printable(text: str) -> str:
    r"""Return a text without control codes, lone surrogates and ends of lines.

    >>> printable("weights\x1b[31m")
    'weights?[31m'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_lines(text: str) -> str:
    r"""Return a text of lines whose names are made printable.

    >>> printable_lines("run\x1b[2J.trace:3: broken\nTry: another")
    'run?[2J.trace:3: broken\nTry: another'
    """
    return "\n".join(map(printable, text.split("\n")))
