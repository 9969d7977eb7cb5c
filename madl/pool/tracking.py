"""Allocations that are tracked: tags with their limits, and listeners.

A tracked block has a watch, which counts its free for the tag and tells the listeners.
Untracked ones, which are most, cost nothing of this.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from madl import hotpath, stacks
from madl.errors import OutOfMemoryError, OutOfMemoryReport
from madl.errors.report import Request, TagLimit
from madl.hotpath import BLOCK_GRANULARITY, Watch
from madl.hotpath.reentrancy import while_counting
from madl.pool.limits import DeviceBudget, SoftLimit, TagBudget
from madl.pool.reclaim import Reclaimers, Short, reclaim
from madl.pool.stats import TagStats
from madl.sizes import align_up, format_nbytes
from madl.stacks import Stack


class Listener(Protocol):
    """Is told of every allocation and free while it is ``wanted``.

    Called with no lock held. ``freed`` also runs in finalizers: it must not block,
    allocate from a pool, or raise.
    """

    def allocated(
        self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
    ) -> int:
        """Take note of an allocation; return the id that ``freed`` is called with.

        Args:
            nbytes: As asked for.
            tag: Its own, or that of the context.
            stream_number: Streams of a pool count 1, 2, ...; 0 is the default.
            stack: Of as many lines as are wanted, 0 by default.
        """

    def freed(self, allocation_id: int) -> None:
        """Take note of a free."""


listeners: tuple[Listener, ...] = ()
"""Those that are told now."""


class TagScope:
    """One ``with madl.tag(...)``: the last part of a tag, and what it bounds."""

    def __init__(
        self, name: str, limit_nbytes: int | None, soft_limit_nbytes: int | None
    ) -> None:
        self.name = name
        self.limit_nbytes = limit_nbytes
        self.soft_limit_nbytes = soft_limit_nbytes
        self._soft: dict[str, SoftLimit] = {}

    def soft_on(self, device: str) -> SoftLimit:
        """Return the soft limit as it stands on a device."""
        return self._soft.setdefault(device, SoftLimit(self.soft_limit_nbytes))


class TagPath(NamedTuple):
    """The tags around an allocation, outermost first."""

    name: str
    """As in ``"model/encoder"``."""
    scopes: tuple[TagScope, ...]
    bounds: dict[str, TagScope]
    """Those that have a limit, by the tag that it is of."""

    @staticmethod
    def of(scopes: tuple[TagScope, ...]) -> "TagPath | None":
        """Return the path through scopes; ``None`` without any."""
        if not scopes:
            return None
        names = [scope.name for scope in scopes]
        bounds = {
            "/".join(names[: depth + 1]): scope
            for depth, scope in enumerate(scopes)
            if (scope.limit_nbytes, scope.soft_limit_nbytes) != (None, None)
        }
        return TagPath("/".join(names), scopes, bounds)


current_tag: ContextVar[TagPath | None] = ContextVar("madl_tag", default=None)

warns_of_drops = False
"""Whether a warning is wanted when a handle is dropped without ``free()``."""

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
        # No max(): a call lets another thread run, whose higher mark would be undone.
        if self.live_nbytes > self.live_high_water:
            self.live_high_water = self.live_nbytes

    @while_counting
    def count_freed(self, watch: "BlockWatch") -> None:
        """Count a block of the tag as free, once; or go on where it was interrupted."""
        if watch.is_counted:
            budgets = iter(self._budgets)
            # No call from here to the loop, and none in it, so no handler interrupts
            # between what is noted and what is done.
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
        self._is_missed = warns_of_drops
        self.nbytes = nbytes
        self.padding = 0
        self._heard: Sequence[tuple[Listener, int]] = ()
        if listeners:
            self._heard = [
                (listener, listener.allocated(nbytes, tag, stream_number, self.stack))
                for listener in listeners
            ]

    def count(self, padding: int) -> None:
        """Count the block for its tag, once it is known what it takes."""
        self.padding = padding
        if self._usage is not None:
            self._usage.count_allocated(self.nbytes, padding)
        self.is_counted = True  # until then, who claimed the bytes gives them back

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
        """Take note of a drop without ``free()``; warn of it where that is wanted."""
        self.freed()
        if self._is_missed and warns_of_drops:
            self._warn_of_drop()

    def _warn_of_drop(self) -> None:
        # Arrays and views keep the block and are dropped when done, as in NumPy.
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
    path = current_tag.get()
    if tag is None:
        return _NOTHING if path is None else (path.name, path.bounds)
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a text, got {tag!r} ({type(tag).__name__})")
    if not tag.isprintable():
        raise ValueError(f"tag must be printable and on one line, got {tag!r}")
    return tag, {} if path is None else path.bounds


class Wish(NamedTuple):
    """What a part of a program wants of every allocation, besides that it is watched.

    Attributes:
        lines: Of its callers, that it remembers.
        listener: That is told of it.
        warns_of_drops: Whether a drop without ``free()`` warns.
    """

    lines: int = 0
    listener: Listener | None = None
    warns_of_drops: bool = False


_wishes: dict[object, Wish] = {}
"""By owner. A wish begins with one store and ends with one removal, each atomic, so an
interruption leaves it in force or not. All figures are made from what is here."""


@contextlib.contextmanager
def wanted(wish: Wish = Wish()) -> Iterator[None]:  # noqa: B008  # it is immutable
    """Let every allocation inside the block be watched, in all threads and pools."""
    owner = object()
    try:
        _wishes[owner] = wish
        _put_in_force(wish)
        yield
    finally:
        try:
            # A call of C, with nothing before it: a signal handler that raises comes
            # after it, and the wish of a block that has ended is not in force for ever.
            _wishes.pop(owner, None)
        finally:
            _put_in_force(wish)


def _put_in_force(changed: Wish) -> None:
    """Set what the hot path reads, after a wish has come or gone."""
    global listeners, warns_of_drops  # read with every watched block
    # A race: a thread that changed the wishes after they were read here may have set
    # its figures before this one sets older ones. Compare again.
    count = -1
    while count != len(_wishes):
        count = len(_wishes)
        hotpath.set_watch_count(count)
    wishes = None if changed != Wish() else [*_wishes.values()]
    while wishes != (now := [*_wishes.values()]):
        wishes = now
        stacks.remember(max((wish.lines for wish in wishes), default=0))
        listeners = tuple(wish.listener for wish in wishes if wish.listener)
        warns_of_drops = any(wish.warns_of_drops for wish in wishes)


class Tags:
    """The tags of one pool: what each of them holds, and how a limit is passed."""

    def __init__(
        self, device: str, budget: DeviceBudget, reclaimers: Reclaimers
    ) -> None:
        self._device = device
        self._budget = budget
        self._reclaimers = reclaimers
        self._usages: dict[str, TagUsage] = {}

    def usage_of(self, tag: str) -> TagUsage:
        """Return what counts for a tag; the first call makes it."""
        try:
            return self._usages[tag]  # waits for no other thread, as get() may
        except KeyError:
            usage = TagUsage(self._budget, tag)
            return self._usages.setdefault(tag, usage)

    def claim(
        self, tag: str, bounds: dict[str, TagScope], nbytes: int, pool: Short
    ) -> TagUsage:
        """Count bytes for a tag, within its limit and those of the tags above it.

        Args:
            tag: Its full name.
            bounds: The scopes around the allocation that have limits.
            nbytes: As asked for.
            pool: That is asked for memory.

        Raises:
            OutOfMemoryError: A limit stays exceeded. Nothing is counted.
        """
        usage = self.usage_of(tag)
        attempt = functools.partial(usage.claim, nbytes, bounds, self._device)
        refused = None
        try:
            attempt()
        except OutOfMemoryError as error:
            refused = error.report.tag_limit
        if refused is not None:  # here, so that the error is no context of the next
            capacity = align_up(nbytes, BLOCK_GRANULARITY)
            request = Request(nbytes, capacity, tag_limit=refused)
            if nbytes > refused.limit_nbytes:
                raise pool.out_of_memory(request)
            reclaim(pool, request, self._reclaimers.steps(nbytes), attempt)
        return usage

    def stats(self) -> dict[str, TagStats]:
        """Return the figures of each tag."""
        # A copy, made in one step: other threads add tags without the lock.
        return {tag: usage.stats() for tag, usage in self._usages.copy().items()}
