"""Streams whose work is done when somebody waits for it, and not before."""

from collections.abc import Callable
from typing import NamedTuple


class FakeStream:
    """An ordered queue of work that does nothing by itself.

    Whoever reads too early finds the old bytes; whoever gives memory back too early
    gets an error when the work that uses it is done.
    """

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.done_count = 0
        self._work: list[Callable[[], None]] = []

    @property
    def queued_count(self) -> int:
        """How much work was ever queued."""
        return self.done_count + len(self._work)

    def queue(self, work: Callable[[], None]) -> None:
        """Put work at the end."""
        self._work.append(work)

    def pump(self, count: int | None = None) -> int:
        """Do the next ``count`` pieces of work, or all; return how many were done."""
        wanted = len(self._work) if count is None else min(count, len(self._work))
        for _ in range(wanted):
            self.done_count += 1
            self._work.pop(0)()
        return wanted


class FakeEvent(NamedTuple):
    """A position in a stream.

    Attributes:
        stream: The stream.
        position: How much work is before it.
    """

    stream: FakeStream
    position: int

    def is_done(self) -> bool:
        """Return whether all work before it is done."""
        return self.stream.done_count >= self.position

    def reach(self) -> None:
        """Do what is left of the work before it."""
        self.stream.pump(max(self.position - self.stream.done_count, 0))
