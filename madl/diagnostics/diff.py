"""Compare two traces or snapshots: growth by tag, by size, and in all."""

from collections.abc import Iterator
from typing import NamedTuple

from madl.diagnostics.history import History
from madl.diagnostics.traces.trace import Trace
from madl.errors.report import NO_TAG
from madl.pool.stats import PoolSnapshot


class Held(NamedTuple):
    """What one tag, or the blocks of one class of sizes, hold.

    Attributes:
        nbytes: Bytes.
        blocks: Blocks.
    """

    nbytes: int = 0
    blocks: int = 0

    def plus(self, nbytes: int) -> "Held":
        """Return it with one block more."""
        return Held(self.nbytes + nbytes, self.blocks + 1)


class Contents(NamedTuple):
    """What a trace holds at its peak, or a snapshot at its moment.

    Attributes:
        kind: ``"trace"`` or ``"snapshot"``.
        totals: Figures of all, by name.
        by_tag: By the name of the tag.
        by_size: By the least power of two that has room for a block's bytes.
    """

    kind: str
    totals: dict[str, int]
    by_tag: dict[str, Held]
    by_size: dict[int, Held]


class Change(NamedTuple):
    """A tag, a class of sizes or a figure, before and after.

    Attributes:
        name: What it is of.
        before: Bytes, or the figure, before.
        after: The same, after.
        blocks_before: Blocks before; ``None`` for a figure.
        blocks_after: Blocks after; ``None`` for a figure.
    """

    name: str
    before: int
    after: int
    blocks_before: int | None = None
    blocks_after: int | None = None

    @property
    def growth(self) -> int:
        """How much more it is; negative when it is less."""
        return self.after - self.before


class Diff(NamedTuple):
    """What is different by tag and by size, the most growth first; and all totals.

    Attributes:
        totals: Each figure of all.
        tags: Each tag.
        sizes: Each class of sizes.
    """

    totals: tuple[Change, ...]
    tags: tuple[Change, ...]
    sizes: tuple[Change, ...]


def contents_of_trace(trace: Trace) -> Contents:
    """Return what is live at a trace's peak, and its figures."""
    live: set[int] = set()
    for operation in trace.operations[: trace.peak_position]:
        if operation < 0:
            live.remove(~operation)
        else:
            live.add(operation)
    blocks = ((trace.nbytes_of[one], trace.tag(one)) for one in live)
    freed = sum(trace.nbytes_of[~one] for one in trace.operations if one < 0)
    totals = {
        "peak_live_nbytes": trace.peak_live_nbytes,
        "live_at_end_nbytes": sum(trace.nbytes_of) - freed,
        "allocations": trace.allocations,
        "frees": trace.frees,
    }
    return _contents("trace", totals, blocks)


def contents_of_snapshot(snapshot: PoolSnapshot) -> Contents:
    """Return what is live in a snapshot, and its figures."""
    blocks = [block for arena in snapshot.arenas for block in arena.blocks]
    live = [(block.nbytes, block.tag) for block in blocks if block.state == "live"]
    binned = sum(b.capacity_nbytes for b in blocks if b.state == "binned")
    totals = {
        "live_nbytes": snapshot.live_nbytes,
        "committed_nbytes": snapshot.committed_nbytes,
        "cached_nbytes": binned,
        "live_blocks": len(live),
    }
    return _contents("snapshot", totals, iter(live))


def contents_of_history(history: History) -> Contents:
    """Return what is live at the end of a history, which a snapshot shows."""
    end = history.last_moment
    rows = history.live_at(end)
    sizes, holders = history.blocks.nbytes[rows], history.blocks.holder[rows]
    totals = {
        "live_nbytes": int(history.live_nbytes[end]),
        "committed_nbytes": int(history.committed_nbytes[end]),
        "cached_nbytes": history.free_at(end).nbytes,
        "live_blocks": len(sizes),
    }
    names = (history.holders[number] for number in holders)
    return _contents("snapshot", totals, zip(sizes.tolist(), names, strict=True))


def diff(before: Contents, after: Contents) -> Diff:
    """Compare two of a kind.

    Raises:
        ValueError: One is of a trace, the other of a snapshot.
    """
    if before.kind != after.kind:
        raise ValueError(
            f"a {before.kind} and a {after.kind} cannot be compared; two of a kind can"
        )
    return Diff(
        tuple(Change(k, before.totals[k], after.totals[k]) for k in before.totals),
        _changes(before.by_tag, after.by_tag),
        _changes(
            {str(k): v for k, v in before.by_size.items()},
            {str(k): v for k, v in after.by_size.items()},
        ),
    )


def _contents(
    kind: str, totals: dict[str, int], blocks: Iterator[tuple[int, str | None]]
) -> Contents:
    by_tag: dict[str, Held] = {}
    by_size: dict[int, Held] = {}
    for nbytes, tag in blocks:
        name = NO_TAG if tag is None else tag
        by_tag[name] = by_tag.get(name, Held()).plus(nbytes)
        size = 1 << max(nbytes - 1, 0).bit_length()
        by_size[size] = by_size.get(size, Held()).plus(nbytes)
    return Contents(kind, totals, by_tag, by_size)


def _changes(before: dict[str, Held], after: dict[str, Held]) -> tuple[Change, ...]:
    """Return what differs, the most growth first."""
    changes = []
    for name in before | after:
        old, new = before.get(name, Held()), after.get(name, Held())
        if old != new:
            changes.append(Change(name, old.nbytes, new.nbytes, old.blocks, new.blocks))
    return tuple(sorted(changes, key=lambda change: (-change.growth, change.name)))
