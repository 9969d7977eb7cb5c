"""Allocation traces: what a program asked for and gave back, in program order.

A ``Trace`` is held in columns, 17 bytes an allocation and 8 a free. ``reader`` reads
files of any kind, ``writer`` writes them.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from madl.stacks import Stack

FIRST_LINE = "# madl-trace v1"
NBYTES_LIMIT = 1 << 56
"""Sizes in a trace are below it: no machine has as much, and sums fit 64 bits."""
STREAM_LIMIT = 1 << 63
"""Streams lie between ``-STREAM_LIMIT`` and it, both excluded; most are 0."""
LINE_LIMIT_NBYTES = 1 << 16
"""No line is longer, so that a reader knows how much memory it needs."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """A request for ``nbytes``, as asked: before any rounding."""

    id: int
    """Allocations count 0, 1, 2, ... in program order."""
    nbytes: int
    stream: int = 0
    tag: str | None = None
    stack: Stack = ()
    """Where it was asked for, innermost frame first; empty when not recorded."""


@dataclass(frozen=True, slots=True)
class Free:
    """The end of the allocation ``id``."""

    id: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The start of an iteration or a phase of the program."""

    label: str


Event = Allocate | Free | Marker


@dataclass(frozen=True)
class Trace:
    """The events of one program, in columns that are quick to loop over.

    Every id in ``operations`` is allocated once, in the order 0, 1, 2, ..., and freed
    at most once, later. What is never freed is live at the end. ``len()`` counts the
    allocations and frees.
    """

    name: str
    """The ``name`` header, or the file's name without its suffixes."""
    headers: dict[str, str]
    operations: "array[int]"
    """``id`` allocates, ``~id`` (always negative) frees."""
    nbytes_of: "array[int]"
    """Bytes asked for, by id."""
    stream_of: "array[int] | None" = None
    """By id; ``None`` when all are stream 0."""
    tag_of: "array[int] | None" = None
    """Index into ``tags``, by id; ``None`` when no allocation has a tag."""
    tags: tuple[str | None, ...] = (None,)
    """The distinct tags. The first is ``None``, which stands for no tag."""
    markers: tuple[tuple[int, str], ...] = ()
    """How many operations come before the marker, and its label."""
    stack_of: "array[int] | None" = None
    """Index into ``stacks``, by id; ``None`` when no stack was recorded."""
    stacks: tuple[Stack, ...] = ((),)
    """The distinct stacks. The first is empty."""
    notes: tuple[str, ...] = ()
    """Remarks of the reader of the file, such as that its end is torn."""

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def allocations(self) -> int:
        """How many allocations there are."""
        return len(self.nbytes_of)

    @property
    def frees(self) -> int:
        """How many frees there are."""
        return len(self.operations) - len(self.nbytes_of)

    @property
    def peak_live_nbytes(self) -> int:
        """The high-water mark of live bytes; no allocator can do with less."""
        return self._peak[1]

    @property
    def peak_position(self) -> int:
        """How many operations there are up to and including the peak."""
        return self._peak[0]

    @cached_property
    def _peak(self) -> tuple[int, int]:
        nbytes_of = self.nbytes_of
        live = peak = position = 0
        for done, operation in enumerate(self.operations, 1):
            if operation < 0:
                live -= nbytes_of[~operation]
            else:
                live += nbytes_of[operation]
                if live > peak:
                    peak, position = live, done
        return position, peak

    def tag(self, allocation: int) -> str | None:
        """Return the tag of an allocation."""
        return None if self.tag_of is None else self.tags[self.tag_of[allocation]]

    def events(self) -> Iterator[Event]:
        """Yield every event as a small record, markers included.

        About ten times slower than a loop over ``operations``.
        """
        done = 0
        for position, label in self.markers:
            yield from map(self._event, self.operations[done:position])
            yield Marker(label)
            done = position
        yield from map(self._event, self.operations[done:])

    def _event(self, operation: int) -> Allocate | Free:
        if operation < 0:
            return Free(~operation)
        return Allocate(
            operation,
            self.nbytes_of[operation],
            0 if self.stream_of is None else self.stream_of[operation],
            self.tag(operation),
            () if self.stack_of is None else self.stacks[self.stack_of[operation]],
        )
