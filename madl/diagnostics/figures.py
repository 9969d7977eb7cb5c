"""Statistics of a history: those that ``madl report`` prints and ``madl view`` draws.

Everything here is exact but the curves, which are read at about two moments out of
each of ``BUCKETS`` equal parts of the run: where most is live in it, and least.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from madl.diagnostics.history import FreeSpace, History, Moment
from madl.sizes import format_nbytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUCKETS = 600
GROUP_COUNT = 7
"""As many colours can be distinguished, with one more for all others."""
UNNAMED = "(no name)"
OTHERS = "all others"
HOLDER_COUNT = 12
FRAGMENTATION_MOMENTS = 300
_BANDS = (512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 1 << 30)
"""Above the last of them there is one more band."""


class Grouping(NamedTuple):
    """The blocks of a history in a few groups, each with a colour of its own."""

    kind: str  # "holder", or "size" where no block has one
    names: tuple[str, ...]
    of_block: "NDArray[np.int64]"  # an index into names for each block


class Band(NamedTuple):
    """Blocks of about one size.

    Attributes:
        name: The sizes, as in ``"up to 4.0 KiB"``.
        blocks: How many blocks there were in all.
        nbytes: Bytes of all of them.
    """

    name: str
    blocks: int
    nbytes: int


class Holder(NamedTuple):
    """What one tag or one place in the program holds at a moment.

    Attributes:
        name: The tag, or the line as ``file:line (function)``.
        nbytes: Bytes that it holds.
        blocks: Blocks that it holds.
    """

    name: str
    nbytes: int
    blocks: int


class Summary(NamedTuple):
    """One history in figures.

    Attributes:
        name: Of the trace or the snapshot.
        device: The device that it was placed on.
        placed_by: Which allocator placed the blocks.
        events: Allocations and frees.
        blocks: Blocks that there were in all.
        peak_moment: The moment at which most was live.
        peak_live_nbytes: Bytes that were live then.
        peak_committed_nbytes: The high-water mark of committed bytes.
        live_at_end_nbytes: Bytes live after the last event.
        limit_nbytes: Bytes that could be committed; ``None`` without a limit.
        at_peak: What was committed and free at the peak.
        holders: Of the most bytes at the peak, the largest first.
        bands: All blocks by size.
        notes: What a reader has to know of the figures.
        markers: Moments that the recording names.
    """

    name: str
    device: str
    placed_by: str
    events: int
    blocks: int
    peak_moment: int
    peak_live_nbytes: int
    peak_committed_nbytes: int
    live_at_end_nbytes: int
    limit_nbytes: int | None
    at_peak: FreeSpace
    holders: tuple[Holder, ...]
    bands: tuple[Band, ...]
    notes: tuple[str, ...]
    markers: tuple[Moment, ...]

    @property
    def committed_over_live(self) -> float:
        """Peak committed over peak live bytes; 1 is the least possible."""
        if not self.peak_live_nbytes:
            return 1.0
        return self.peak_committed_nbytes / self.peak_live_nbytes


class Curves(NamedTuple):
    """What changes over time, at some of the moments."""

    moments: "NDArray[np.int64]"  # where live and committed bytes are read
    live: tuple["NDArray[np.int64]", ...]  # of each group
    committed: "NDArray[np.int64]"
    fragmentation_moments: "NDArray[np.int64]"
    fragmentation: tuple[float, ...]
    is_sampled: bool  # whether some moments are left out


def summarize(history: History) -> Summary:
    """Return a history in figures."""
    peak = history.peak_moment
    return Summary(
        name=history.name,
        device=history.device,
        placed_by=history.placed_by,
        events=history.last_moment,
        blocks=len(history.blocks.nbytes),
        peak_moment=peak,
        peak_live_nbytes=history.peak_live_nbytes,
        peak_committed_nbytes=history.peak_committed_nbytes,
        live_at_end_nbytes=int(history.live_nbytes[-1]),
        limit_nbytes=history.limit_nbytes,
        at_peak=history.free_at(peak),
        holders=largest_holders(history, peak),
        bands=size_bands(history),
        notes=history.notes,
        markers=history.markers,
    )


def largest_holders(history: History, moment: int) -> tuple[Holder, ...]:
    """Return who holds most at a moment, the largest first."""
    held = list(history.held_at(moment).items())[:HOLDER_COUNT]
    return tuple(
        Holder(UNNAMED if name is None else name, *figures) for name, figures in held
    )


def size_bands(history: History) -> tuple[Band, ...]:
    """Return how many blocks of which sizes there were, all through the run."""
    nbytes = history.blocks.nbytes
    band_of = np.searchsorted(_BANDS, nbytes)
    sizes = ((n, nbytes[band_of == n]) for n in range(len(_BANDS) + 1))
    names = _band_names()
    return tuple(Band(names[n], len(some), int(some.sum())) for n, some in sizes)


def group(history: History) -> Grouping:
    """Put blocks into groups: by holder where there are any, by size otherwise."""
    holder = history.blocks.holder
    is_held = any(history.holders[n] is not None for n in np.unique(holder))
    if not is_held:
        band_of = np.searchsorted(_BANDS, history.blocks.nbytes)
        return Grouping("size", _band_names(), band_of)
    largest = _coloured_holders(history)
    # Where a group is not among the largest, it is the last one: all others.
    place = np.full(len(history.holders), len(largest), np.int64)
    place[largest] = np.arange(len(largest))
    names = [history.holders[n] or UNNAMED for n in largest]
    return Grouping("holder", (*names, OTHERS), place[holder])


def curves(history: History, grouping: Grouping) -> Curves:
    """Return what changes over time, peaks and all, at no more moments than fit."""
    moments = _moments(history)
    step = max(len(moments) // FRAGMENTATION_MOMENTS, 1)
    some = np.unique(np.append(moments[::step], history.peak_moment))
    return Curves(
        moments=moments,
        live=tuple(
            history.live_nbytes_of(grouping.of_block == number)[moments]
            for number in range(len(grouping.names))
        ),
        committed=history.committed_nbytes[moments],
        fragmentation_moments=some,
        fragmentation=tuple(
            history.free_at(int(moment)).fragmentation_ratio for moment in some
        ),
        is_sampled=len(moments) <= history.last_moment,
    )


def _moments(history: History) -> "NDArray[np.int64]":
    live, committed = history.live_nbytes, history.committed_nbytes
    count = history.last_moment + 1
    if count <= 2 * BUCKETS:
        return np.arange(count)
    found = {0, count - 1, int(live.argmax()), int(committed.argmax())}
    edges = np.linspace(0, count, BUCKETS + 1).astype(int).tolist()
    for first, stop in pairwise(edges):
        part = live[first:stop]
        found.update((first + int(part.argmax()), first + int(part.argmin())))
    return np.array(sorted(found))


def _coloured_holders(history: History) -> list[int]:
    """Return the holders of most at the peak; then, those that were given most."""
    blocks = history.blocks
    holder = blocks.holder.astype(np.intp)
    at_peak, given = (
        np.bincount(holder[rows], blocks.nbytes[rows], len(history.holders))
        for rows in (history.live_at(history.peak_moment), slice(None))
    )
    order = np.lexsort((-given, -at_peak))
    return [int(n) for n in order[:GROUP_COUNT] if given[n] or at_peak[n]]


def _band_names() -> tuple[str, ...]:
    texts = [format_nbytes(edge).replace(".0 ", " ") for edge in _BANDS]
    return (*(f"up to {text}" for text in texts), f"above {texts[-1]}")
