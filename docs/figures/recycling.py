"""One reservation, and recycling: the pages of a pool before and after."""

from docs.figures.svg import FREE, LIVE, MOVED, PAPER, Drawing
from madl import Memory, Pool
from madl.backends.sim import SimBackend
from madl.pool.stats import ArenaSnapshot

MIB = 1 << 20
SHOWN_MIB, SCALE, LEFT, HEIGHT, ROW = 36, 22, 12, 34, 104
Moment = tuple[str, ArenaSnapshot, dict[int, str]]


def _moments() -> tuple[list[Moment], int]:
    """Return what a pool has at three moments, and how many pages it recycled."""
    pool = Pool(SimBackend(total_nbytes=1 << 30), page_size="2 MiB")
    live: dict[str, Memory] = {}
    moments: list[Moment] = []

    def look(what: str) -> None:
        # Each block is told by where it lies: it is the only one of its size.
        [arena] = pool.snapshot().arenas
        by_size = {memory.nbytes: name for name, memory in live.items()}
        names = {
            block.offset: by_size[block.nbytes]
            for block in arena.blocks
            if block.state == "live"
        }
        moments.append((what, arena, names))

    for name, size in {"A": 6, "B": 4, "C": 8}.items():
        live[name] = pool.allocate(size * MIB)
    look("A, B and C are live: 18 MiB, and just as much is committed")
    live.pop("B").free()
    look("B is freed: its two pages stay committed, and idle")
    live["D"] = pool.allocate(10 * MIB)
    look("D, 10 MiB, is too large for the hole: B's pages move to it, 6 MiB are new")
    return moments, pool.stats().recycled_pages


def pages_before_and_after() -> str:
    """Return the figure."""
    moments, recycled = _moments()
    assert recycled == 2, "the two pages that B left"
    width = LEFT * 2 + SHOWN_MIB * SCALE
    drawing = Drawing(width, ROW * len(moments) + 66, "Pages of one reservation")
    for number, (what, arena, names) in enumerate(moments):
        y = 40 + ROW * number
        is_last = number == len(moments) - 1  # the arrows come from above there
        text_y = y + HEIGHT + 18 if is_last else y - 14
        drawing.text(LEFT, text_y, what, kind="strong", anchor="start")
        drawing.box(LEFT, y, SHOWN_MIB * SCALE, HEIGHT, edge="#8c959f", dash="4 3")
        _draw_pages(drawing, y, arena)
        for block in arena.blocks:
            if block.state == "live":
                x = LEFT + block.offset / MIB * SCALE
                length = block.capacity_nbytes / MIB * SCALE
                drawing.box(x + 2, y + 3, length - 4, HEIGHT - 6, fill=LIVE, edge=LIVE)
                text = f"{names[block.offset]}  {block.nbytes // MIB} MiB"
                drawing.text(x + length / 2, y + 22, text, kind="on")
        committed = sum(nbytes for _, nbytes in arena.committed_runs) // MIB
        drawing.text(
            width - LEFT,
            y + HEIGHT + 16,
            f"committed: {committed} MiB",
            kind="small",
            anchor="end",
        )
    _move(drawing, 40 + ROW)
    _legend(drawing, ROW * len(moments) + 36)
    return drawing.as_svg()


def _draw_pages(drawing: Drawing, y: float, arena: ArenaSnapshot) -> None:
    page = arena.page_nbytes
    for start, nbytes in arena.committed_runs:
        for offset in range(start, start + nbytes, page):
            x = LEFT + offset / MIB * SCALE
            drawing.box(x, y, page / MIB * SCALE, HEIGHT, fill=FREE, edge="#8c959f")


def _move(drawing: Drawing, y: float) -> None:
    """Draw how the idle pages go from the hole to the place of D."""
    for page in (0, 1):
        start = LEFT + (6 + 2 * page + 1) * SCALE
        stop = LEFT + (18 + 2 * page + 1) * SCALE
        middle = y + HEIGHT + 16 + 10 * page
        drawing.arrow(
            (start, y + HEIGHT - 4),
            (start, middle),
            (stop, middle),
            (stop, y + ROW - 2),
            colour=MOVED,
            width=2,
        )


def _legend(drawing: Drawing, y: float) -> None:
    x = float(LEFT)
    for fill, edge, text in (
        (LIVE, LIVE, "live block"),
        (FREE, "#8c959f", "committed page of 2 MiB"),
        (PAPER, "#8c959f", "reserved addresses, no memory behind them (they go on)"),
    ):
        drawing.box(x, y, 16, 14, fill=fill, edge=edge)
        drawing.text(x + 22, y + 12, text, kind="small", anchor="start")
        x += 60 + 6.2 * len(text)
