"""Read the CSV log of RMM, the allocator of RAPIDS.

A row is one event of one thread, in the order in which they were logged. Times and
threads are not kept; streams are numbered in the order in which they appear.

RMM buffers its log: that of a process that is killed ends in the middle of a row.
"""

from madl.diagnostics.traces.builder import LiveBlocks, TraceBuilder
from madl.diagnostics.traces.lines import (
    RefusedError,
    UnfinishedLine,
    cut_off,
    hexadecimal,
    shown,
    whole_number,
)
from madl.diagnostics.traces.trace import NBYTES_LIMIT

RMM_FIRST_LINE = "Thread,Time,Action,Pointer,Size,Stream"
_STREAM_COUNT_LIMIT = 1 << 20
_STREAM_LIMIT_NBYTES = 40
_DEFAULT_STREAMS = (b"", b"0", b"0x0", b"default")


class RmmReader:
    """Adds the event of every row; an allocation that failed is a marker."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._blocks = LiveBlocks(builder)
        self.finish = self._blocks.finish
        self._builder = builder
        self._streams: dict[bytes, int] = dict.fromkeys(_DEFAULT_STREAMS, 0)

    def add(self, line: bytes) -> None:
        """Add the event of a row."""
        fields = line.split(b",")
        if len(fields) != 6:
            if len(fields) < 6 and isinstance(line, UnfinishedLine):
                self._builder.notes.append(cut_off(line))
                return
            raise RefusedError(f"a row must be {RMM_FIRST_LINE}, got {shown(line)}")
        _, _, action, pointer, size, stream = fields
        nbytes = whole_number(size, "Size", NBYTES_LIMIT)
        if action == b"allocate":
            address = hexadecimal(pointer, "Pointer")
            self._blocks.allocate(address, nbytes, stream=self._stream(stream))
        elif action == b"free":
            self._blocks.free(hexadecimal(pointer, "Pointer"))
        elif action == b"allocate failure":
            self._builder.mark(f"out of memory: {nbytes} bytes")
        else:
            raise RefusedError(
                "Action must be allocate, allocate failure or free, "
                f"got {shown(action)}"
            )

    def _stream(self, field: bytes) -> int:
        number = self._streams.get(field)
        if number is None:
            if len(field) > _STREAM_LIMIT_NBYTES:
                raise RefusedError(
                    f"Stream has at most {_STREAM_LIMIT_NBYTES} letters, "
                    f"got {shown(field)}"
                )
            known = len(self._streams) - len(_DEFAULT_STREAMS)
            if known == _STREAM_COUNT_LIMIT:
                raise RefusedError(f"more than {_STREAM_COUNT_LIMIT} streams")
            number = self._streams[field] = known + 1
        return number
