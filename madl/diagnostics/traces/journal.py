"""The journal of a recording: a crash-safe log of binary records of 16 bytes.

A record is a value and a key with a kind; ``docs/explanation/trace-format.md`` is the
grammar. The newest records are in a ring that is mapped from the file, so they survive
the process, ``SIGKILL`` included. Compiled, pools write to it by themselves.
"""

import enum
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import IO, NamedTuple

from madl.diagnostics.traces.builder import LiveBlocks, TraceBuilder
from madl.diagnostics.traces.lines import LINE_COUNT_LIMIT, RefusedError
from madl.diagnostics.traces.text import stack_from_text, stack_to_text
from madl.diagnostics.traces.trace import LINE_LIMIT_NBYTES, NBYTES_LIMIT
from madl.diagnostics.traces.writer import TEXT_LIMIT_NBYTES
from madl.errors import FileFormatError
from madl.hotpath import CompiledJournal
from madl.stacks import Stack

MAGIC = b"madl-journal v1\n"
SUFFIX = ".journal"
RECORD_NBYTES = len(MAGIC)
HEAD_NBYTES = 64
BYTE_ORDER_MARK = 0x0102030405060708
NUMBER_LIMIT = 1 << 30
"""Tags and stacks are numbered below it."""
_WORDS = struct.Struct("=QQ")
_MAPPED_NBYTES = 1 << 18
_RING_NBYTES = _MAPPED_NBYTES - HEAD_NBYTES
_HEAD = struct.Struct("=16sQQ")
_END, _END_OFFSET = struct.Struct("=Q"), _HEAD.size
_READ_NBYTES = 1 << 16
_RING_LIMIT_NBYTES = 1 << 26
_END_LIMIT = RECORD_NBYTES * LINE_COUNT_LIMIT
"""No trace has more events, so no journal that could become one is longer."""


class Kind(enum.IntEnum):
    """What a record is; the value and the key depend on it."""

    ALLOCATE = 1  # value: bytes asked for; key: names the block until it is freed
    FREE = 2  # key: the block
    CONTEXT = 3  # of the next allocation; value: stream; key: stack << 30 | tag
    TEXT = 4  # value: bytes of the records that follow; key: number << 4 | a Text


class Text(enum.IntEnum):
    """What a text is."""

    HEADER = 1  # as in "key: value"
    TAG = 2  # from here on a CONTEXT's tag of that number is it
    STACK = 3  # the same for stacks, as JSON
    MARKER = 4


def record(value: int, key: int, kind: Kind) -> bytes:
    """Return one record."""
    return _WORDS.pack(value & (1 << 64) - 1, key << 4 | kind)


def text_records(what: Text, number: int, text: str) -> bytes:
    """Return the records of a text."""
    encoded = text.encode()
    padding = bytes(-len(encoded) % RECORD_NBYTES)
    return record(len(encoded), number << 4 | what, Kind.TEXT) + encoded + padding


def context_record(stream: int, tag_number: int, stack_number: int) -> bytes:
    """Return the record that comes before an allocation that is not plain."""
    return record(stream, stack_number << 30 | tag_number, Kind.CONTEXT)


class PlainJournal:
    """A journal in plain Python, for where nothing compiles. One thread at a time.

    The ring is written with zeros before it is mapped: a full disk is then an error
    here, not a signal at some later store.
    """

    hears_pools = False
    """Whether pools write by themselves while it listens."""

    def __init__(self, file: int) -> None:
        """Take an empty file, open for reading and writing; it stays the caller's."""
        self._file = file
        self._position = HEAD_NBYTES
        self.end = 0
        """Bytes of all records that were written."""
        self.error = 0
        """The errno that ended the writing, or 0."""
        try:
            self._write_all(bytes(_MAPPED_NBYTES), 0)
            self._mapped = mmap.mmap(file, _MAPPED_NBYTES)
        except OSError as error:
            self.error = error.errno or -1
            return
        head = _HEAD.pack(MAGIC, BYTE_ORDER_MARK, _RING_NBYTES)
        self._mapped[: _HEAD.size] = head

    def put(self, records: bytes) -> None:
        """Write whole records, one behind the other; after an error, nothing."""
        for start in range(0, len(records), RECORD_NBYTES):
            if self._position == _MAPPED_NBYTES:
                self._flush()
            if self.error:
                return
            stop = self._position + RECORD_NBYTES
            one = records[start : start + RECORD_NBYTES]
            self._mapped[self._position : stop] = one
            self._position = stop
            self.end += RECORD_NBYTES
            # After the record: a process killed between the two leaves no half record.
            _END.pack_into(self._mapped, _END_OFFSET, self.end)

    def listen(self, define_tag: Callable[[int, str], None]) -> None:
        """Do nothing: who wants to hear of allocations is a listener."""

    def stop_listening(self) -> None:
        """Do nothing."""

    def _flush(self) -> None:
        if self.error:
            return
        try:
            ring = self._mapped[HEAD_NBYTES:]
            self._write_all(ring, _MAPPED_NBYTES + self.end - _RING_NBYTES)
        except OSError as error:
            self.error = error.errno or -1
            return
        self._position = HEAD_NBYTES

    def _write_all(self, content: bytes, offset: int) -> None:
        os.lseek(self._file, offset, os.SEEK_SET)
        left = memoryview(content)
        while left:
            left = left[os.write(self._file, left) :]


Journal: type[PlainJournal] = CompiledJournal or PlainJournal


class JournalWriter:
    """Writes the journal beside ``path``. One thread at a time, but for the pools."""

    def __init__(self, path: Path, headers: dict[str, str]) -> None:
        """Start a journal.

        Raises:
            FileExistsError: There is one already.
            OSError: The file cannot be made. None is left.
        """
        self.path = path.with_name(path.name + SUFFIX)
        try:
            self._file = open(  # noqa: SIM115  # until close()
                self.path, "x+b", buffering=0, opener=_open_privately
            )
        except FileExistsError as error:
            raise FileExistsError(
                error.errno,
                f"a recording to {str(path)!r} is running, or did not end. Try: "
                "`madl replay` of its journal, and then remove that",
                str(self.path),
            ) from None
        except OSError as error:
            text = f"cannot record: {error.strerror}"
            raise type(error)(error.errno, text, str(path)) from None
        self.journal = Journal(self._file.fileno())
        self._tags: dict[str, int] = {}
        self._stacks: dict[Stack, int] = {}
        for key, value in headers.items():
            self.journal.put(text_records(Text.HEADER, 0, f"{key}: {value}"))
        if number := self.journal.error:
            self.close()
            self.remove()
            raise OSError(number, f"cannot record: {os.strerror(number)}", str(path))

    @property
    def error(self) -> OSError | None:
        """What ended the writing."""
        number = self.journal.error
        if not number:
            return None
        return OSError(number, os.strerror(number), str(self.path))

    def allocate(
        self, key: int, nbytes: int, stream: int, tag: str | None, stack: Stack
    ) -> None:
        """Write an allocation."""
        plain = record(nbytes, key, Kind.ALLOCATE)
        if not (stream or tag or stack):
            self.journal.put(plain)
            return
        tag_number = self._tags.get(tag, 0) if tag else 0
        if tag and not tag_number:
            # Defined before it is noted: interrupted in between, it is defined again.
            tag_number = _number_after(self._tags)
            self.define_tag(tag_number, tag)
            self._tags[tag] = tag_number
        stack_number = self._stacks.get(stack, 0)
        if stack and not stack_number:
            stack_number = _number_after(self._stacks)
            text = stack_to_text(stack, TEXT_LIMIT_NBYTES)
            self.journal.put(text_records(Text.STACK, stack_number, text))
            self._stacks[stack] = stack_number
        self.journal.put(context_record(stream, tag_number, stack_number) + plain)

    def free(self, key: int) -> None:
        """Write a free."""
        self.journal.put(record(0, key, Kind.FREE))

    def mark(self, label: str) -> None:
        """Write a marker."""
        self.journal.put(text_records(Text.MARKER, 0, label))

    def define_tag(self, number: int, tag: str) -> None:
        """Write what a tag is called from now on; after ``close()``, nothing.

        A race: a pool that saw the recording still running may call this when another
        thread has closed it.
        """
        journal: PlainJournal | None = vars(self).get("journal")
        if journal is not None:
            cut = tag.encode(errors="replace")[:TEXT_LIMIT_NBYTES]  # as a trace has it
            journal.put(text_records(Text.TAG, number, cut.decode(errors="ignore")))

    def close(self) -> None:
        """Write no more."""
        del self.journal  # unmaps: Windows removes no file that is mapped
        self._file.close()

    def remove(self) -> None:
        """Remove the file, after it was closed."""
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file in a forked child: it is the parent's."""
        self.journal.stop_listening()
        self._file.close()


def _number_after(known: Sized) -> int:
    return len(known) % (NUMBER_LIMIT - 1) + 1


def _open_privately(path: str, flags: int) -> int:
    """Open with mode 0600: tags and stacks say much of a program."""
    return os.open(path, flags, 0o600)


class _TornError(Exception):
    """The file ends in the middle of a record, or before its head says."""


def add_journal(path: str, file: IO[bytes], builder: TraceBuilder) -> None:
    """Add all whole records of a file at the end of ``MAGIC``; a torn end is a note.

    Raises:
        FileFormatError: A record is broken.
    """
    try:
        reader = _JournalReader(file, builder)
    except RefusedError as bad:
        raise FileFormatError(path, 0, str(bad)) from None
    end = ""
    try:
        reader.read()
    except _TornError:
        end = "; what comes after is torn"
    except RefusedError as bad:
        reason = f"record {reader.count}: {bad}"
        raise FileFormatError(path, 0, reason) from None
    reader.blocks.finish()
    count = len(builder.operations)
    counted = "1 event was" if count == 1 else f"{count} events were"
    builder.notes.append(
        "a journal, of a recording that has not ended: "
        f"{counted} written until then{end}"
    )


class _Head(NamedTuple):
    words: struct.Struct
    end: int
    ring: bytes

    @property
    def base(self) -> int:
        """Bytes of records that are in the file behind the ring, for certain."""
        return max(self.end - 1, 0) // len(self.ring) * len(self.ring)


def _head(file: IO[bytes]) -> _Head:
    head = file.read(HEAD_NBYTES - len(MAGIC))
    for order in "<>":
        words = struct.Struct(f"{order}QQ")
        if len(head) == HEAD_NBYTES - len(MAGIC):
            mark, ring_nbytes = words.unpack_from(head)
            end, _ = words.unpack_from(head, words.size)
            if mark == BYTE_ORDER_MARK:
                break
    else:
        raise RefusedError("the journal does not say in which byte order it is")
    if not 0 < ring_nbytes <= _RING_LIMIT_NBYTES or ring_nbytes % RECORD_NBYTES:
        raise RefusedError(f"a ring cannot have {ring_nbytes} bytes")
    if end % RECORD_NBYTES or end >= _END_LIMIT:
        raise RefusedError(f"records cannot have {end} bytes in all")
    ring = file.read(ring_nbytes)
    return _Head(words, end, ring.ljust(ring_nbytes, b"\0"))


def _records(file: IO[bytes], head: _Head) -> Iterator[tuple[int, int]]:
    """Yield the words of each record, first those of the file, then of the ring."""
    left = head.base
    while left:
        block = file.read(min(left, _READ_NBYTES))
        yield from head.words.iter_unpack(block[: len(block) // 16 * 16])
        left -= len(block)
        if not block:
            raise _TornError
    rest = head.end - head.base
    if rest == len(head.ring):
        # A full ring is appended before its first record is overwritten.
        appended = file.read(rest)
        yield from head.words.iter_unpack(
            appended if len(appended) == rest else head.ring
        )
    else:
        yield from head.words.iter_unpack(head.ring[:rest])


class _JournalReader:
    def __init__(self, file: IO[bytes], builder: TraceBuilder) -> None:
        head = _head(file)
        self.count = 0
        self.blocks = LiveBlocks(builder)
        self._words = head.words
        self._records = _records(file, head)
        self._builder = builder
        self._tags: dict[int, str] = {}
        self._stacks: dict[int, Stack] = {}
        self._context: tuple[int, str | None, Stack] = (0, None, ())

    def read(self) -> None:
        """Add every record; raise ``_TornError`` after those that are whole."""
        for value, key_and_kind in self._records:
            self.count += 1
            kind, key = key_and_kind & 15, key_and_kind >> 4
            if kind == Kind.FREE:
                self.blocks.free(key)
            elif kind == Kind.ALLOCATE:
                self._allocate(key, value)
            elif kind == Kind.CONTEXT:
                self._set_context(key, value)
            elif kind == Kind.TEXT:
                self._text(key, value)
            elif kind:
                raise RefusedError(f"its kind is {kind}, which is unknown")
            else:
                raise _TornError

    def _allocate(self, key: int, nbytes: int) -> None:
        if nbytes >= NBYTES_LIMIT:
            raise RefusedError(f"nbytes must be below {NBYTES_LIMIT}, got {nbytes}")
        stream, tag, stack = self._context
        self.blocks.allocate(key, nbytes, stream=stream, tag=tag, stack=stack)
        self._context = (0, None, ())

    def _set_context(self, key: int, stream: int) -> None:
        tag, stack = key % NUMBER_LIMIT, key // NUMBER_LIMIT
        if tag and tag not in self._tags:
            raise RefusedError(f"tag {tag} has not been named")
        if stack and stack not in self._stacks:
            raise RefusedError(f"stack {stack} has not been described")
        signed = stream - (stream >> 63 << 64)
        if signed == -(1 << 63):
            raise RefusedError("stream must be above -2**63")
        self._context = (signed, self._tags.get(tag), self._stacks.get(stack, ()))

    def _text(self, key: int, nbytes: int) -> None:
        text = self._read_text(nbytes)
        number, what = key >> 4, key & 15
        if what == Text.TAG:
            self._builder.count_text(text)
            self._tags[number] = text
        elif what == Text.STACK:
            self._stacks[number] = stack_from_text(text, self._builder)
        elif what == Text.MARKER:
            self._builder.mark(text)
        elif what == Text.HEADER:
            name, _, value = text.partition(":")
            self._builder.describe(name.strip(), value.strip())
        else:
            raise RefusedError(f"it is a text of kind {what}, which is unknown")

    def _read_text(self, nbytes: int) -> str:
        if nbytes > LINE_LIMIT_NBYTES:
            reason = f"a text has at most {LINE_LIMIT_NBYTES} bytes, got {nbytes}"
            raise RefusedError(reason)
        read = b"".join(
            self._words.pack(*words)
            for _, words in zip(
                range(-(-nbytes // RECORD_NBYTES)), self._records, strict=False
            )
        )[:nbytes]
        if len(read) < nbytes or b"\0" in read:
            raise _TornError
        try:
            text = read.decode()
        except UnicodeDecodeError:
            raise RefusedError("a text is not UTF-8") from None
        if "\n" in text or "\r" in text:
            raise RefusedError("a text must be on one line")
        return text
