"""Blocks that somebody watches: their tag's usage and the listeners hear of a free."""

from madl import events
from madl.hotpath import Watch
from madl.hotpath.counting import counting
from madl.stats import TagStats


class TagUsage:
    """What one tag of one pool holds. Counters only, so that finalizers may count."""

    def __init__(self) -> None:
        self.live_nbytes = 0
        self.live_high_water = 0
        self.padding_nbytes = 0
        self.allocation_count = 0
        self.free_count = 0

    def count_allocated(self, nbytes: int, padding: int) -> None:
        """Count a block of the tag as live."""
        with counting:
            self.allocation_count += 1
            self.padding_nbytes += padding
            self.live_nbytes += nbytes
            self.live_high_water = max(self.live_high_water, self.live_nbytes)

    def count_freed(self, nbytes: int, padding: int) -> None:
        """Count a block of the tag as free."""
        with counting:
            self.free_count += 1
            self.padding_nbytes -= padding
            self.live_nbytes -= nbytes

    def stats(self) -> TagStats:
        """Return the figures as plain data."""
        return TagStats(
            live_nbytes=self.live_nbytes,
            live_high_water_nbytes=self.live_high_water,
            padding_nbytes=self.padding_nbytes,
            allocation_count=self.allocation_count,
            free_count=self.free_count,
        )


class BlockWatch(Watch):
    """Tells a block's tag and the listeners of its allocation that it was freed."""

    __slots__ = ("_heard", "_nbytes", "_padding", "_usage", "tag")

    def __init__(self, nbytes: int, tag: str | None, usage: TagUsage | None) -> None:
        self.tag = tag
        self._nbytes = nbytes
        self._padding = 0
        self._usage = usage
        self._heard = [
            (listener, listener.allocated(nbytes, tag)) for listener in events.listeners
        ]

    def count(self, padding: int) -> None:
        """Count the block for its tag, once it is known what it takes."""
        self._padding = padding
        if self._usage is not None:
            self._usage.count_allocated(self._nbytes, padding)

    def freed(self) -> None:
        """Take note of the free; counters and appends only."""
        if self._usage is not None:
            self._usage.count_freed(self._nbytes, self._padding)
        for listener, allocation_id in self._heard:
            listener.freed(allocation_id)


def effective_tag(tag: str | None) -> str | None:
    """Return the tag that an allocation gets: its own, or that of its context."""
    if tag is None:
        return events.current_tag.get()
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a text, got {tag!r} ({type(tag).__name__})")
    if not tag.isprintable():
        raise ValueError(f"tag must be printable and on one line, got {tag!r}")
    return tag
