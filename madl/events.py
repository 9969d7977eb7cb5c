"""What is told of allocations, and to whom: the current tag and the listeners."""

from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Is told of every allocation and free while it is in ``listeners``.

    Called with no lock held. ``freed`` also runs in finalizers: it must not block,
    allocate from a pool, or raise.
    """

    def allocated(self, nbytes: int, tag: str | None, stream_number: int) -> int:
        """Take note of an allocation; return the id that ``freed`` is called with.

        Args:
            nbytes: As asked for.
            tag: Its own, or that of the context.
            stream_number: Streams of a pool count 1, 2, ...; 0 is the default.
        """

    def freed(self, allocation_id: int) -> None:
        """Take note of a free."""


listeners: list[Listener] = []

current_tag: ContextVar[str | None] = ContextVar("madl_tag", default=None)
