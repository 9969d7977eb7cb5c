"""A journal: records of 16 bytes in a file, interpreted.

The latest lie in a ring that is mapped into memory, so that they stay when the process
is killed; a full ring is appended to the file. The ring is written with zeros before it
is mapped: a full disk is then an error here, not a signal at some later store. The
format is in ``docs/explanation/trace-format.md``.
"""

import mmap
import os
import struct
from collections.abc import Callable

_MAPPED_NBYTES = 1 << 18
_HEAD_NBYTES = 64
_RING_NBYTES = _MAPPED_NBYTES - _HEAD_NBYTES
_RECORD_NBYTES = 16
_HEAD = struct.Struct("=16sQQ")
_BYTE_ORDER_MARK = 0x0102030405060708
_END = struct.Struct("=Q")
_END_OFFSET = _HEAD.size


class Journal:
    """Records in a file, written by one thread at a time."""

    hears_pools = False
    """Whether pools write by themselves while it listens."""

    def __init__(self, file: int) -> None:
        """Take an empty file, open for reading and writing; it stays the caller's."""
        self._file = file
        self._position = _HEAD_NBYTES
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
        head = _HEAD.pack(b"madl-journal v1\n", _BYTE_ORDER_MARK, _RING_NBYTES)
        self._mapped[: _HEAD.size] = head

    def put(self, records: bytes) -> None:
        """Write whole records, one behind the other; after an error, nothing."""
        for start in range(0, len(records), _RECORD_NBYTES):
            if self._position == _MAPPED_NBYTES:
                self._flush()
            if self.error:
                return
            stop = self._position + _RECORD_NBYTES
            one = records[start : start + _RECORD_NBYTES]
            self._mapped[self._position : stop] = one
            self._position = stop
            self.end += _RECORD_NBYTES
            # last: what it does not count does not exist
            _END.pack_into(self._mapped, _END_OFFSET, self.end)

    def listen(self, define_tag: Callable[[int, str], None]) -> None:
        """Do nothing: who wants to hear of allocations is a listener."""

    def stop_listening(self) -> None:
        """Do nothing."""

    def _flush(self) -> None:
        if self.error:
            return
        try:
            ring = self._mapped[_HEAD_NBYTES:]
            self._write_all(ring, _MAPPED_NBYTES + self.end - _RING_NBYTES)
        except OSError as error:
            self.error = error.errno or -1
            return
        self._position = _HEAD_NBYTES

    def _write_all(self, content: bytes, offset: int) -> None:
        os.lseek(self._file, offset, os.SEEK_SET)
        left = memoryview(content)
        while left:
            left = left[os.write(self._file, left) :]
