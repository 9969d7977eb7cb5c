"""What a journal holds: records of 16 bytes, each a value and a key with a kind.

``docs/explanation/trace-format.md`` is the grammar. How records get into the file is
``madl.hotpath.Journal``.
"""

import enum
import struct

MAGIC = b"madl-journal v1\n"
SUFFIX = ".journal"
RECORD_NBYTES = len(MAGIC)
HEAD_NBYTES = 64
BYTE_ORDER_MARK = 0x0102030405060708
NUMBER_LIMIT = 1 << 30
"""Tags and stacks are numbered below it."""
_WORDS = struct.Struct("=QQ")


class Kind(enum.IntEnum):
    """What a record is; the value and the key depend on it."""

    ALLOCATE = 1
    """Value: bytes asked for. Key: what names the block until it is freed."""
    FREE = 2
    """Key: the block."""
    CONTEXT = 3
    """Of the allocation that follows. Value: stream. Key: stack << 30 | tag."""
    TEXT = 4
    """Value: bytes of the text, which follows in whole records. Key: number << 4 | a
    ``Text``."""


class Text(enum.IntEnum):
    """What a text is."""

    HEADER = 1
    """``key: value``."""
    TAG = 2
    """From here on a CONTEXT's tag of that number is it."""
    STACK = 3
    """The same for stacks; JSON."""
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
