"""Build a trace event by event; refuse double frees, unknown ids, too much text.

``LiveBlocks`` is for files that name blocks by address, which may be used again.
"""

from array import array
from sys import getsizeof

from madl.diagnostics.traces.lines import RefusedError
from madl.diagnostics.traces.trace import Trace
from madl.stacks import Stack

TEXT_LIMIT_NBYTES = 128 << 20
"""Memory for the headers, markers and distinct tags of one trace, at most."""
_TEXT_OVERHEAD_NBYTES = 128
"""About what a marker or a table entry takes over its text."""


class TraceBuilder:
    """A trace under construction.

    Sizes and streams must be within the limits of ``trace``; readers check them as
    they parse. Ids, frees and the amount of text are checked here.
    """

    def __init__(self) -> None:
        self.operations = array("q")
        self.nbytes_of = array("q")
        self.live = bytearray()  # one byte an id: 1 while it is live
        self.headers: dict[str, str] = {}
        self.notes: list[str] = []
        # Each ends at the last allocation that has what it is of: a stream other than
        # 0, a tag, a stack.
        self._stream_of = array("q")
        self._tag_of = array("L")
        self._stack_of = array("L")
        self._tags: dict[str | None, int] = {None: 0}
        self._stacks: dict[Stack, int] = {(): 0}
        self._markers: list[tuple[int, str]] = []
        self._text_nbytes = 0

    @property
    def has_events(self) -> bool:
        """Whether anything but headers was added."""
        return bool(self.operations or self._markers)

    def allocate(
        self, nbytes: int, *, stream: int = 0, tag: str | None = None, stack: Stack = ()
    ) -> int:
        """Add an allocation and return its id; an empty tag is no tag."""
        allocation = len(self.live)
        if stream:
            _extend(self._stream_of, allocation).append(stream)
        if tag:
            if tag not in self._tags:
                self.count_text(tag)
                self._tags[tag] = len(self._tags)
            _extend(self._tag_of, allocation).append(self._tags[tag])
        if stack:
            self.stack_of_next(stack)
        self.operations.append(allocation)
        self.nbytes_of.append(nbytes)
        self.live.append(1)
        return allocation

    def stack_of_next(self, stack: Stack) -> None:
        """Say where the next allocation was asked for; the last one said counts."""
        number = self._stacks.setdefault(stack, len(self._stacks))
        del self._stack_of[len(self.live) :]
        _extend(self._stack_of, len(self.live)).append(number)

    def free(self, allocation: int) -> None:
        """Add the free of a live id."""
        if allocation >= len(self.live):
            raise RefusedError(
                f"id {allocation} is freed, but only {len(self.live)} are allocated"
            )
        if not self.live[allocation]:
            raise RefusedError(f"id {allocation} is freed twice")
        self.live[allocation] = 0
        self.operations.append(~allocation)

    def mark(self, label: str) -> None:
        """Add a marker."""
        self.count_text(label)
        self._markers.append((len(self.operations), label))

    def describe(self, key: str, value: str) -> None:
        """Set a header; the last of one key counts."""
        self.count_text(key, value)
        self.headers[key] = value

    def finish(self, name: str) -> Trace:
        """Return the trace; the builder is not used again.

        Args:
            name: Used when no header gives one.
        """
        count = len(self.live)
        del self._stack_of[count:]
        return Trace(
            name=self.headers.get("name") or name,
            headers=self.headers,
            operations=self.operations,
            nbytes_of=self.nbytes_of,
            stream_of=_extend(self._stream_of, count) if self._stream_of else None,
            tag_of=_extend(self._tag_of, count) if self._tag_of else None,
            tags=tuple(self._tags),
            markers=tuple(self._markers),
            stack_of=_extend(self._stack_of, count) if self._stack_of else None,
            stacks=tuple(self._stacks),
            notes=tuple(self.notes),
        )

    def count_text(self, *texts: str) -> None:
        """Count texts that are kept until the trace is done."""
        self._text_nbytes += _TEXT_OVERHEAD_NBYTES + sum(map(getsizeof, texts))
        if self._text_nbytes > TEXT_LIMIT_NBYTES:
            raise RefusedError(
                f"headers, markers and tags take more than {TEXT_LIMIT_NBYTES} bytes"
            )


def _extend(column: "array[int]", count: int) -> "array[int]":
    """Return ``column`` after filling it with zeros to ``count`` entries."""
    missing = count - len(column)
    if missing:
        column.frombytes(bytes(missing * column.itemsize))
    return column


LIVE_LIMIT = 1 << 22
"""Live blocks, at about 100 bytes of memory each."""


class LiveBlocks:
    """Adds allocations and frees of addresses to a trace.

    More than one block may be live at one address, as those of zero bytes are; a free
    ends the latest. One that ends none is of a block from before the file began.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._ids: dict[int, int | list[int]] = {}
        self._live = 0
        self._unknown = 0

    def allocate(
        self,
        address: int,
        nbytes: int,
        *,
        stream: int = 0,
        tag: str | None = None,
        stack: Stack = (),
    ) -> None:
        """Add an allocation."""
        if self._live == LIVE_LIMIT:
            raise RefusedError(f"more than {LIVE_LIMIT} blocks are live at once")
        self._live += 1
        new = self._builder.allocate(nbytes, stream=stream, tag=tag, stack=stack)
        old = self._ids.get(address)
        if old is None:
            self._ids[address] = new
        elif isinstance(old, list):
            old.append(new)
        else:
            self._ids[address] = [old, new]

    def free(self, address: int) -> None:
        """Add the free of what was allocated last at an address."""
        found = self._ids.pop(address, None)
        if found is None:
            self._unknown += 1
            return
        self._live -= 1
        if isinstance(found, list):
            self._builder.free(found.pop())
            self._ids[address] = found if len(found) > 1 else found[0]
        else:
            self._builder.free(found)

    def finish(self) -> None:
        """Note the frees that were left out."""
        if self._unknown:
            self._builder.notes.append(
                f"frees of what was allocated before are left out: {self._unknown}"
            )
