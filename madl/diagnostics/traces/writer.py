"""Write files atomically, and traces as gzipped ``madl-trace v1``.

A file appears under its name when it is complete: it is written to a hidden part beside
it, which replaces it. After an error or an interruption the old content is as before.
"""

import os
import secrets
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from operator import index
from pathlib import Path
from typing import Self

from madl.diagnostics.traces.text import stack_to_text
from madl.diagnostics.traces.trace import (
    FIRST_LINE,
    LINE_LIMIT_NBYTES,
    NBYTES_LIMIT,
    STREAM_LIMIT,
    Allocate,
    Free,
    Trace,
)
from madl.sizes import parse_nbytes
from madl.stacks import Stack

TEXT_LIMIT_NBYTES = LINE_LIMIT_NBYTES // 4
"""A line has room for a header's key and value, or for a tag or stack and numbers."""
_GZIP = 16 + zlib.MAX_WBITS
_BUFFERED_LINES = 4096


class TraceWriter:
    """Writes a gzipped ``madl-trace v1`` that appears under its name when complete.

    Until ``close()`` everything goes to a hidden file beside ``path``; an exception
    that leaves the ``with`` block removes it, and a file that stood at ``path``
    before stays as it was. The same calls write the same bytes. One thread at a time.
    In a forked child it writes and removes nothing.
    """

    def __init__(
        self, path: str | os.PathLike[str], headers: Mapping[str, str] | None = None
    ) -> None:
        """Start a trace.

        Args:
            path: Where the trace will be; an existing file is replaced.
            headers: Written at the top, as in ``{"name": "my-model"}``.

        Raises:
            ValueError: ``path`` is a directory, a pipe or a device, or a header does
                not fit on one line. No file was made.
            OSError: The file cannot be made.
        """
        target = file_behind(path)
        if target is None:
            raise ValueError(f"path must name a file, got {os.fspath(path)!r}")
        self._path = target
        items = (headers or {}).items()
        self._lines = [FIRST_LINE, *(_header_line(key, value) for key, value in items)]
        self._live = bytearray()  # one byte an id: 1 while it is live
        self._is_closed = False
        self._part = _part_of(self._path)
        self._process = os.getpid()
        self._stacks: dict[Stack, int] = {(): 0}
        try:
            # Unbuffered: the finalizer of a buffer that a forked child inherits would
            # write into the parent's file.
            self._file = self._part.open("xb", buffering=0)
        except OSError as error:
            text = f"cannot write a trace: {error.strerror}"
            raise type(error)(error.errno, text, os.fspath(path)) from None
        # no name and no time in the header, so that equal traces are equal files
        self._gzip = zlib.compressobj(6, zlib.DEFLATED, _GZIP)

    def allocate(
        self, nbytes: int, *, stream: int = 0, tag: str | None = None, stack: Stack = ()
    ) -> int:
        """Write an allocation and return its id; an empty tag is no tag."""
        self._check_open()
        if (nbytes := parse_nbytes(nbytes)) >= NBYTES_LIMIT:
            raise ValueError(f"nbytes must be below {NBYTES_LIMIT}, got {nbytes}")
        if not -STREAM_LIMIT < (stream := index(stream)) < STREAM_LIMIT:
            raise ValueError(f"stream must fit 64 bits, got {stream}")
        allocation = len(self._live)
        line = f"a,{allocation},{nbytes}"
        if tag:
            line = f"{line},{stream},{one_line('tag', tag)}"
        elif stream:
            line = f"{line},{stream}"
        self._live.append(1)
        if stack:
            self._write_stack(stack)
        self._write(line)
        return allocation

    def free(self, allocation: int) -> None:
        """Write the free of the id that ``allocate`` returned.

        Raises:
            ValueError: It is not live; nothing was written.
        """
        self._check_open()
        if not (0 <= allocation < len(self._live) and self._live[allocation]):
            raise ValueError(f"allocation must be live, got {allocation}")
        self._live[allocation] = 0
        self._write(f"f,{allocation}")

    def mark(self, label: str) -> None:
        """Write that an iteration or a phase starts here."""
        self._check_open()
        self._write(f"m,{one_line('label', label)}")

    def close(self) -> None:
        """Finish the file and give it its name; closing again does nothing.

        Raises:
            OSError: It cannot be written; nothing is left of it.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        try:
            self._flush()
            _write_all(self._file, self._gzip.flush())
            self._file.close()
            self._part.replace(self._path)
        except BaseException:
            self.discard()
            raise
        self._is_closed = True

    def discard(self) -> None:
        """Remove what was written; after ``close()`` it does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError):
            self._file.close()
        if os.getpid() == self._process:
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            self.discard()
        if self._is_closed:
            raise ValueError(f"the trace {str(self._path)!r} is closed")

    def _write_stack(self, stack: Stack) -> None:
        """Write where the next allocation was asked for, as a comment to others."""
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = len(self._stacks)
            self._write(f"#s,{number},{stack_to_text(stack, TEXT_LIMIT_NBYTES)}")
        else:
            self._write(f"#s,{number}")

    def _write(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= _BUFFERED_LINES:
            try:
                self._flush()
            except BaseException:
                self.discard()
                raise

    def _flush(self) -> None:
        if self._lines:
            text = "\n".join(self._lines) + "\n"
            self._lines.clear()
            _write_all(self._file, self._gzip.compress(text.encode()))


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as gzipped ``madl-trace v1``; an existing file is replaced.

    Raises:
        OSError, ValueError: It cannot be written; nothing is left of it.
    """
    with TraceWriter(path, {"name": trace.name} | trace.headers) as writer:
        for event in trace.events():
            if isinstance(event, Allocate):
                writer.allocate(
                    event.nbytes, stream=event.stream, tag=event.tag, stack=event.stack
                )
            elif isinstance(event, Free):
                writer.free(event.id)
            else:
                writer.mark(event.label)


def _header_line(key: str, value: str) -> str:
    if ":" in key or not key or key != key.strip():
        raise ValueError(
            f"header must be a word without ':' and outer spaces, got {key!r}"
        )
    return f"# {one_line('header', key)}: {one_line('header', value)}"


def one_line(what: str, text: str) -> str:
    """Return ``text`` if a line of a trace can carry it."""
    if "\n" in text or "\r" in text:
        raise ValueError(f"{what} must be on one line, got {text!r}")
    try:
        nbytes = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be valid Unicode, got {text!r}") from None
    if nbytes > TEXT_LIMIT_NBYTES:
        raise ValueError(
            f"{what} must be at most {TEXT_LIMIT_NBYTES} bytes, got {nbytes}"
        )
    return text


def _part_of(path: Path) -> Path:
    """Return a name beside a file, for what is to replace it when it is complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def _write_all(file: FileIO, content: bytes) -> None:
    """Write to a file without a buffer, of which one write may take only a part."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def file_behind(path: str | os.PathLike[str]) -> Path | None:
    """Return the file that a path names, if it is one or could become one.

    Links are followed: the file that one names is replaced, not the link.

    Raises:
        PermissionError: The system does not follow such a link, or write there.
    """
    given = Path(path)
    if given.is_symlink():
        _ask_to_follow(given)
    target = given.resolve()
    # Not target.exists(): /dev/stdout resolves to a name that a pipe does not have.
    return None if given.exists() and not target.is_file() else target


def _ask_to_follow(link: Path) -> None:
    """Open what a link names, so that the system can refuse it.

    Linux follows no link of another user in a sticky folder such as ``/tmp``, where one
    may be laid under the name of a file to come. ``resolve()`` reads the link itself
    and goes by its own steps, of which the system knows nothing.
    """
    try:
        os.close(os.open(link, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)))
    except PermissionError:
        raise
    except OSError:
        return  # it names no file yet, or a folder, or a pipe that has no reader


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file; one that is there is replaced when all of it is written.

    What is no file, a pipe or ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: It cannot be written. Nothing is left of it, and a file that was there
            is as before; so it is after an interruption.
    """
    target = file_behind(path)
    if target is None:
        Path(path).write_bytes(content)
        return
    part = _part_of(target)
    try:
        # Unbuffered: close() after an interruption has nothing left to write.
        with part.open("xb", buffering=0) as file:
            if target.exists():
                shutil.copymode(target, part)  # a private file stays private
            _write_all(file, content)
        part.replace(target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):  # of the file that was asked for
            error.filename, error.filename2 = os.fspath(path), None
        raise
