"""Read what a recording had written when its process ended, however that was."""

import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

from madl.diagnostics.traces.builder import BadEventError, TraceBuilder
from madl.diagnostics.traces.journal_format import (
    BYTE_ORDER_MARK,
    HEAD_NBYTES,
    MAGIC,
    NUMBER_LIMIT,
    RECORD_NBYTES,
    Kind,
    Text,
)
from madl.diagnostics.traces.lines import LINE_COUNT_LIMIT
from madl.diagnostics.traces.live_blocks import LiveBlocks
from madl.diagnostics.traces.stack_text import stack_from_text, texts_of
from madl.diagnostics.traces.trace import LINE_LIMIT_NBYTES, NBYTES_LIMIT
from madl.errors import FileFormatError
from madl.stacks import Stack

_READ_NBYTES = 1 << 16
_RING_LIMIT_NBYTES = 1 << 26
_END_LIMIT = RECORD_NBYTES * LINE_COUNT_LIMIT
"""No trace has more events, so no journal that could become one is longer."""


class _TornError(Exception):
    """The rest is not there, or not whole."""


def add_journal(path: str, file: IO[bytes], builder: TraceBuilder) -> None:
    """Add all whole records; what is wrong with the end is a note.

    Args:
        path: For errors.
        file: At the end of ``MAGIC``.
        builder: Gets the events.

    Raises:
        FileFormatError: A record is broken.
    """
    try:
        reader = _JournalReader(_head(file), builder)
    except BadEventError as bad:
        raise FileFormatError(path, 0, str(bad)) from None
    end = ""
    try:
        reader.read(file)
    except _TornError:
        end = "; what comes after is torn"
    except BadEventError as bad:
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
        """Bytes of the records that were appended to the file for sure."""
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
        raise BadEventError("the journal does not say in which byte order it is")
    if not 0 < ring_nbytes <= _RING_LIMIT_NBYTES or ring_nbytes % RECORD_NBYTES:
        raise BadEventError(f"a ring cannot have {ring_nbytes} bytes")
    if end % RECORD_NBYTES or end >= _END_LIMIT:
        raise BadEventError(f"records cannot have {end} bytes in all")
    ring = file.read(ring_nbytes)
    return _Head(words, end, ring.ljust(ring_nbytes, b"\0"))


def _records(file: IO[bytes], head: _Head) -> Iterator[tuple[int, int]]:
    """Yield the words of each record, first those of the file, then of the ring.

    Raises:
        _TornError: The file is too short.
    """
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
    def __init__(self, head: _Head, builder: TraceBuilder) -> None:
        self.count = 0
        self.blocks = LiveBlocks(builder)
        self._head = head
        self._records: Iterator[tuple[int, int]] = iter(())
        self._builder = builder
        self._tags: dict[int, str] = {}
        self._stacks: dict[int, Stack] = {}
        self._context: tuple[int, str | None, Stack] = (0, None, ())

    def read(self, file: IO[bytes]) -> None:
        """Add every record.

        Raises:
            _TornError: After those that are whole.
        """
        self._records = _records(file, self._head)
        for value, key_and_kind in self._records:
            self.count += 1
            kind, key = key_and_kind & 15, key_and_kind >> 4
            if kind == Kind.FREE:
                self.blocks.free(key)
            elif kind == Kind.ALLOCATE:
                self._allocate(key, value)
            elif kind:
                self._add_unusual(kind, key, value)
            else:
                raise _TornError

    def _add_unusual(self, kind: int, key: int, value: int) -> None:
        if kind == Kind.CONTEXT:
            self._set_context(key, value)
        elif kind == Kind.TEXT:
            self._text(key, value)
        else:
            raise BadEventError(f"its kind is {kind}, which is unknown")

    def _allocate(self, key: int, nbytes: int) -> None:
        if nbytes >= NBYTES_LIMIT:
            raise BadEventError(f"nbytes must be below {NBYTES_LIMIT}, got {nbytes}")
        stream, tag, stack = self._context
        self.blocks.allocate(key, nbytes, stream=stream, tag=tag, stack=stack)
        self._context = (0, None, ())

    def _set_context(self, key: int, stream: int) -> None:
        tag, stack = key % NUMBER_LIMIT, key // NUMBER_LIMIT
        if tag and tag not in self._tags:
            raise BadEventError(f"tag {tag} has not been named")
        if stack and stack not in self._stacks:
            raise BadEventError(f"stack {stack} has not been described")
        signed = stream - (stream >> 63 << 64)
        if signed == -(1 << 63):
            raise BadEventError("stream must be above -2**63")
        self._context = (signed, self._tags.get(tag), self._stacks.get(stack, ()))

    def _text(self, key: int, nbytes: int) -> None:
        text = self._read_text(nbytes)
        number, what = key >> 4, key & 15
        if what == Text.TAG:
            self._builder.count_text(text)
            self._tags[number] = text
        elif what == Text.STACK:
            try:
                self._stacks[number] = stack_from_text(text)
            except ValueError as error:
                raise BadEventError(str(error)) from None
            self._builder.count_text(*texts_of(self._stacks[number]))
        elif what == Text.MARKER:
            self._builder.mark(text)
        elif what == Text.HEADER:
            name, _, value = text.partition(":")
            self._builder.describe(name.strip(), value.strip())
        else:
            raise BadEventError(f"it is a text of kind {what}, which is unknown")

    def _read_text(self, nbytes: int) -> str:
        if nbytes > LINE_LIMIT_NBYTES:
            reason = f"a text has at most {LINE_LIMIT_NBYTES} bytes, got {nbytes}"
            raise BadEventError(reason)
        read = b"".join(
            self._head.words.pack(*words)
            for _, words in zip(
                range(-(-nbytes // RECORD_NBYTES)), self._records, strict=False
            )
        )[:nbytes]
        if len(read) < nbytes or b"\0" in read:
            raise _TornError
        try:
            text = read.decode()
        except UnicodeDecodeError:
            raise BadEventError("a text is not UTF-8") from None
        if "\n" in text or "\r" in text:
            raise BadEventError("a text must be on one line")
        return text
