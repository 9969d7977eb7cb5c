"""Blocks that somebody watches: their tag's usage and the listeners hear of a free."""

import warnings
from collections.abc import Iterator, Sequence

from madl import stacks
from madl.errors import OutOfMemoryError, OutOfMemoryReport
from madl.errors.report import TagLimit
from madl.hotpath import Watch
from madl.hotpath.counting import while_counting
from madl.pool import events
from madl.pool.events import Listener, TagScope
from madl.pool.limits import DeviceBudget, TagBudget
from madl.pool.stats import TagStats
from madl.sizes import format_nbytes

warns_of_drops = 0
"""How many want a warning when a handle is dropped that was not freed."""


_NOTHING: tuple[None, dict[str, TagScope]] = (None, {})


class TagUsage:
    """What one tag of one pool holds. Counters only, so that finalizers may count."""

    def __init__(self, device: DeviceBudget, name: str) -> None:
        self.live_nbytes = 0
        self.live_high_water = 0
        self.padding_nbytes = 0
        self.allocation_count = 0
        self.free_count = 0
        parts = name.split("/")
        # Of the tag itself and of all above it.
        self._budgets = [
            device.tag("/".join(parts[:depth])) for depth in range(1, len(parts) + 1)
        ]

    @while_counting
    def claim(self, nbytes: int, bounds: dict[str, TagScope], device: str) -> None:
        """Count bytes for the tag and for those above it, as far as they may have them.

        Raises:
            OutOfMemoryError: Over the limit of one of them, which the report names.
                Nothing has changed.
        """
        if not bounds:
            for budget in self._budgets:
                budget.live_nbytes += nbytes
            return
        for done, budget in enumerate(self._budgets):
            scope = bounds.get(budget.name)
            if scope is None or scope.limit_nbytes is None:
                budget.live_nbytes += nbytes
            elif not budget.claim(nbytes, scope.limit_nbytes):
                for claimed in self._budgets[:done]:
                    claimed.live_nbytes -= nbytes
                refused = self._most_exceeded(nbytes, bounds)
                raise OutOfMemoryError(
                    OutOfMemoryReport(device, nbytes, tag_limit=refused)
                )

    def _most_exceeded(self, nbytes: int, bounds: dict[str, TagScope]) -> TagLimit:
        """Return the limit that is in the way most: to pass it may be no use before.

        Of equals the innermost: what is freed there is freed for those above it.
        """
        limits = [
            TagLimit(budget.name, scope.limit_nbytes, budget.live_nbytes)
            for budget in reversed(self._budgets)
            if (scope := bounds.get(budget.name)) and scope.limit_nbytes is not None
        ]
        return max(limits, key=lambda one: one.live_nbytes + nbytes - one.limit_nbytes)

    def warn(self, bounds: dict[str, TagScope], device: str) -> None:
        """Warn of each soft limit that has been passed. No lock is held."""
        for budget in self._budgets:
            scope = bounds.get(budget.name)
            if scope is not None:
                soft = scope.soft_on(device)
                soft.look(budget.live_nbytes)
                live = format_nbytes(budget.live_nbytes)
                soft.tell(f"{device}: tag {budget.name!r}, with {live} live,")

    @while_counting
    def give_back(self, nbytes: int) -> None:
        """Undo a claim."""
        for budget in self._budgets:
            budget.live_nbytes -= nbytes

    @while_counting
    def count_allocated(self, nbytes: int, padding: int) -> None:
        """Count a block of the tag as live, which was claimed."""
        self.allocation_count += 1
        self.padding_nbytes += padding
        self.live_nbytes += nbytes
        # No max(): another thread could come in between, and its mark be lost.
        if self.live_nbytes > self.live_high_water:
            self.live_high_water = self.live_nbytes

    @while_counting
    def count_freed(self, watch: "BlockWatch") -> None:
        """Count a block of the tag as free, once; or go on where it was interrupted."""
        if watch.is_counted:
            budgets = iter(self._budgets)
            # No call from here to the loop, and none in it: what is noted is done.
            watch.is_counted, watch.counted_above = False, budgets
            self.free_count += 1
            self.padding_nbytes -= watch.padding
            self.live_nbytes -= watch.nbytes
        for budget in watch.counted_above:
            budget.live_nbytes -= watch.nbytes

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

    __slots__ = (
        "_heard",
        "_is_missed",
        "_usage",
        "counted_above",
        "is_counted",
        "is_viewed",
        "nbytes",
        "padding",
        "stack",
        "tag",
    )

    def __init__(
        self,
        nbytes: int,
        tag: str | None,
        usage: TagUsage | None,
        *,
        stream_number: int = 0,
    ) -> None:
        self._usage = usage
        self.is_counted = False
        self.counted_above: Iterator[TagBudget] = iter(())
        """Budgets that count the block still, though its tag does not."""
        self.tag = tag
        self.stack = stacks.capture() if stacks.depth else ()
        self.is_viewed = False
        self._is_missed = warns_of_drops > 0
        self.nbytes = nbytes
        self.padding = 0
        self._heard: Sequence[tuple[Listener, int]] = ()
        if events.listeners:
            self._heard = [
                (listener, listener.allocated(nbytes, tag, stream_number, self.stack))
                for listener in list(events.listeners)
            ]

    def count(self, padding: int) -> None:
        """Count the block for its tag, once it is known what it takes."""
        self.padding = padding
        if self._usage is not None:
            self._usage.count_allocated(self.nbytes, padding)
        self.is_counted = True  # else what was claimed is given back by whoever did

    def freed(self) -> None:
        """Take note of the free; counters and appends only."""
        self._count_freed()
        for listener, allocation_id in self._heard:
            listener.freed(allocation_id)

    def _count_freed(self) -> None:
        if self._usage is not None:
            self._usage.count_freed(self)
            self._usage = None

    def __del__(self) -> None:
        # A signal handler may have raised before the free was counted.
        if getattr(self, "_usage", None) is not None:
            self._count_freed()

    def dropped(self) -> None:
        """Take note of a free that nobody asked for; in debug mode, warn of it."""
        self.freed()
        if self._is_missed and warns_of_drops:
            self._warn_of_drop()

    def _warn_of_drop(self) -> None:
        # Whoever has an array or a view drops it when done, as NumPy users do.
        if not self.is_viewed:
            tag = "without a tag" if self.tag is None else f"tag {self.tag!r}"
            at = f", allocated at {self.stack[0]}" if self.stack else ""
            warnings.warn(
                f"memory of {format_nbytes(self.nbytes)} was dropped without free(), "
                f"{tag}{at}",
                ResourceWarning,
                stacklevel=stacks.levels(),
            )


def effective_tag(tag: str | None) -> tuple[str | None, dict[str, TagScope]]:
    """Return the tag that an allocation gets, and the limits that are around it."""
    path = events.current_tag.get()
    if tag is None:
        return _NOTHING if path is None else (path.name, path.bounds)
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a text, got {tag!r} ({type(tag).__name__})")
    if not tag.isprintable():
        raise ValueError(f"tag must be printable and on one line, got {tag!r}")
    return tag, {} if path is None else path.bounds


@while_counting
def change_drop_warnings(by: int) -> None:
    """Begin, or end, to warn of handles that are dropped without a free."""
    global warns_of_drops  # read with every watched block
    warns_of_drops += by
