"""The report of an out-of-memory error: the figures of a failed request."""

from typing import NamedTuple

NO_TAG = "(no tag)"
NO_LINE = "(unknown line)"
OTHERS = "(others)"
"""The holder that stands for all that are not listed."""


class NativeFailure(NamedTuple):
    """What the device's own API answered when a call failed.

    Attributes:
        function: The function's own name, as in ``"mmap"``.
        code: The native status: an errno, a CUresult, a Windows error code.
        text: The driver's own words for ``code``.
    """

    function: str
    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.function} failed with {self.code} ({self.text})"


class Holder(NamedTuple):
    """Who holds live blocks: a tag, or a line of a program.

    Attributes:
        name: The tag, or the line as ``file:line``.
        nbytes: Live bytes, as asked for.
        padding_nbytes: Bytes beyond what was asked for, by rounding.
        block_count: Live blocks.
    """

    name: str
    nbytes: int
    padding_nbytes: int
    block_count: int


class Group(NamedTuple):
    """Live blocks of one size, with one tag, that one line allocated.

    Attributes:
        tag: ``None`` without one.
        line: As ``file:line``; ``None`` while no stacks are kept.
        block_nbytes: Bytes of each block.
        block_count: How many there are.
    """

    tag: str | None
    line: str | None
    block_nbytes: int
    block_count: int


class OtherPools(NamedTuple):
    """What all other pools of this process have of the same device.

    Attributes:
        committed_nbytes: Bytes that they have taken from the device.
        live_nbytes: Bytes that they have handed out.
    """

    committed_nbytes: int = 0
    live_nbytes: int = 0

    @property
    def unused_nbytes(self) -> int:
        """Bytes that are committed and free there, padding included."""
        return max(self.committed_nbytes - self.live_nbytes, 0)


class TagLimit(NamedTuple):
    """The limit of a tag that a request would have passed.

    Attributes:
        name: The tag.
        limit_nbytes: Bytes that may be live.
        live_nbytes: Of the tag and of those below it, in all pools of the device.
    """

    name: str
    limit_nbytes: int
    live_nbytes: int


class Request(NamedTuple):
    """What could not be placed, and what was done about it, as in the report."""

    nbytes: int
    """Bytes asked for."""
    capacity: int
    """Bytes after rounding."""
    tried: tuple[tuple[str, int], ...] = ()
    native: NativeFailure | None = None
    tag_limit: TagLimit | None = None


class OutOfMemoryReport(NamedTuple):
    """Why a request could not be placed. Sizes in bytes; ``None`` is not known.

    ``live + padding + free`` is what is committed, and what is cached is a part of what
    is free. The holders by tag add up to what is live, and so do those by line where
    lines are known.

    Attributes:
        device: The device that ran out.
        requested_nbytes: Bytes asked for.
        capacity_nbytes: What the request takes after rounding.
        limit_nbytes: Bytes that the pool may commit.
        committed_nbytes: Bytes taken from the device.
        live_nbytes: Bytes handed out, as asked for.
        padding_nbytes: Bytes handed out beyond that, by rounding.
        cached_nbytes: Free in bins.
        free_nbytes: Committed and free, bins included.
        largest_free_nbytes: The largest piece of that.
        least_limit_nbytes: A limit under which an empty pool could place the request.
        tried: Each step taken before giving up, and the bytes that it gave back.
        native: What the device's own API answered, if it was asked.
        live_count: Blocks that are live.
        allocation_count: Allocations of the pool so far.
        free_count: Frees of the pool so far.
        is_growing: Whether the pool, though much is freed, has taken more and more all
            along.
        needed_nbytes: What would have to be committed for the request if no free memory
            served it.
        page_nbytes: The unit in which the pool commits.
        enough_page_nbytes: Smaller pages, of which enough would be free now; ``None``
            where none would.
        tags: What each tag holds, the most bytes first.
        lines: What was allocated at each ``file:line``; empty while no stacks are kept.
        largest_group: The one that holds the most bytes.
        device_total_nbytes: Memory of the whole device.
        device_unused_nbytes: As the device says now.
        device_limit_nbytes: What all pools of the device may commit together.
        others: What other pools of this process have of the device.
        tag_limit: Set when a tag's limit, and nothing else, is in the way.
        is_inside_unknown: Whether the request interrupted a call of the pool, which is
            then in no consistent state to be read: the figures of its blocks, and what
            it has committed, are 0.
    """

    device: str
    requested_nbytes: int
    capacity_nbytes: int = 0
    limit_nbytes: int | None = None
    committed_nbytes: int = 0
    live_nbytes: int = 0
    padding_nbytes: int = 0
    cached_nbytes: int = 0
    free_nbytes: int = 0
    largest_free_nbytes: int = 0
    least_limit_nbytes: int = 0
    tried: tuple[tuple[str, int], ...] = ()
    native: NativeFailure | None = None
    live_count: int = 0
    allocation_count: int = 0
    free_count: int = 0
    is_growing: bool = False
    needed_nbytes: int = 0
    page_nbytes: int = 0
    enough_page_nbytes: int | None = None
    tags: tuple[Holder, ...] = ()
    lines: tuple[Holder, ...] = ()
    largest_group: Group | None = None
    device_total_nbytes: int | None = None
    device_unused_nbytes: int | None = None
    device_limit_nbytes: int | None = None
    others: OtherPools = OtherPools()
    tag_limit: TagLimit | None = None
    is_inside_unknown: bool = False

    @property
    def fragmentation_ratio(self) -> float:
        """``1 - largest_free / free``; 0 when nothing is free."""
        if not self.free_nbytes:
            return 0.0
        return 1 - self.largest_free_nbytes / self.free_nbytes

    @property
    def enough_limit_nbytes(self) -> int:
        """A limit under which the request would have been placed, just as things are.

        For all pools together where the limit of the device is in the way.
        """
        taken = self.committed_nbytes
        if self.is_over_device_limit:
            taken += self.others.committed_nbytes
        return taken + max(self.least_limit_nbytes, self.needed_nbytes)

    @property
    def is_over_device_limit(self) -> bool:
        """Whether the limit that all pools of the device share leaves less room."""
        if self.device_limit_nbytes is None:
            return False
        shared = self.device_limit_nbytes - self.others.committed_nbytes
        return self.limit_nbytes is None or shared < self.limit_nbytes

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain containers, ready for ``json.dumps``."""

        def plain(value: object) -> object:
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                return {name: plain(item) for name, item in value._asdict().items()}
            if isinstance(value, tuple):
                return [plain(item) for item in value]
            return value

        figures = {name: plain(value) for name, value in self._asdict().items()}
        return figures | {"fragmentation_ratio": self.fragmentation_ratio}
