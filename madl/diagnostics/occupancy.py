"""Arenas drawn as one line of text."""

from madl.pool.stats import ArenaSnapshot, PoolSnapshot

LEGEND = (
    "# full  + over half  - under half  . committed, free  _ not committed  | arena"
)


def occupancy_line(snapshot: PoolSnapshot, *, width: int = 64) -> str:
    """Return each arena up to its last committed byte, ``width`` characters in all.

    A character stands for a piece of equal bytes, about as many in every arena: how
    much of it is live is read from ``LEGEND``. A bar stands between two arenas.
    """
    spans = [
        (arena, offset + nbytes)
        for arena in snapshot.arenas
        for offset, nbytes in arena.committed_runs[-1:]
    ]
    total = sum(span for _, span in spans)
    if total == 0:
        return "(nothing is committed)"
    left = width - (len(spans) - 1)  # the bars
    drawn = []
    for arena, span in spans:
        pieces = max(round(left * span / total), 1)
        drawn.append(_draw(arena, span, pieces))
        left, total = left - pieces, total - span
    return "|".join(drawn)


def _draw(arena: ArenaSnapshot, span: int, width: int) -> str:
    live = _fill(
        [(b.offset, b.capacity_nbytes) for b in arena.blocks if b.state == "live"],
        span,
        width,
    )
    committed = _fill(list(arena.committed_runs), span, width)
    return "".join(map(_character, live, committed))


def _character(live: float, committed: float) -> str:
    if live > 0.995:
        return "#"
    if live > 0:
        return "+" if live >= 0.5 else "-"
    return "." if committed >= 0.5 else "_"


def _fill(ranges: list[tuple[int, int]], span: int, width: int) -> list[float]:
    """Return for each of ``width`` equal pieces of ``span`` how much is covered."""
    covered = [0.0] * width
    for offset, nbytes in ranges:
        start, stop = offset * width / span, min(offset + nbytes, span) * width / span
        for piece in range(int(start), min(int(stop) + 1, width)):
            covered[piece] += max(min(stop, piece + 1) - max(start, piece), 0.0)
    return covered
