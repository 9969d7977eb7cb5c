"""The way of an allocation: bins, their leash, the index, more memory."""

from docs.figures.svg import FREE, INK, LIVE, MOVED, PAPER, Drawing
from madl.hotpath import BLOCK_GRANULARITY
from madl.pool.options import LEASH_DIVISOR, LOOK_AHEAD, SMALL_NBYTES

WIDTH, LEFT, BOX = 790, 120, 430


def way_of_an_allocation() -> str:
    """Return the figure."""
    small = f"{SMALL_NBYTES >> 20} MiB"
    steps = (
        ("a bin holds a block of the same rounded size", "take it: done", LIVE),
        (f"give back what bins hold of blocks over {small};", "", FREE),
        (
            "the lowest free block that is large enough has its pages",
            "take its low end",
            LIVE,
        ),
        ("flush all bins, and search once more", "take its low end", LIVE),
        ("idle pages: move them to the place, the highest first", "take it", MOVED),
        ("new pages, within the limit; if need be another arena", "take it", MOVED),
        ("ask reclaimers, collect garbage, search again", "take it", MOVED),
    )
    drawing = Drawing(WIDTH, 96 + 76 * len(steps), "The way of an allocation")
    middle = LEFT + BOX / 2
    drawing.text(
        middle,
        26,
        f"pool.allocate(n): n rounded up to {BLOCK_GRANULARITY} bytes",
        kind="strong",
    )
    drawing.arrow((middle, 34), (middle, 52))
    for number, (text, answer, fill) in enumerate(steps):
        y = 54 + 76 * number
        drawing.box(LEFT, y, BOX, 50)
        _write(drawing, middle, y, number, text)
        if answer:
            drawing.arrow((LEFT + BOX, y + 25), (LEFT + BOX + 60, y + 25))
            drawing.text(LEFT + BOX + 28, y + 19, "yes", kind="small")
            drawing.box(LEFT + BOX + 62, y + 8, 136, 34, fill=fill, edge=fill)
            drawing.text(LEFT + BOX + 130, y + 30, answer, kind="on strong")
        drawing.arrow((middle, y + 50), (middle, y + 74))
        if answer:
            drawing.text(middle + 16, y + 67, "no", kind="small")
    _sides(drawing)
    y = 54 + 76 * len(steps)
    drawing.text(middle, y + 16, "OutOfMemoryError, with its report", kind="strong")
    return drawing.as_svg()


def _write(drawing: Drawing, x: float, y: float, number: int, text: str) -> None:
    second = {
        1: f"of small ones too, if bins hold over 1/{LEASH_DIVISOR} of what is "
        "committed",
        2: f"(a large block: the smallest of the first {LOOK_AHEAD} that fit)",
    }.get(number)
    if second is None:
        drawing.text(x, y + 30, text)
    else:
        drawing.text(x, y + 21, text)
        drawing.text(x, y + 39, second)


def _sides(drawing: Drawing) -> None:
    """Write beside the steps which part of madl takes them."""
    parts = (("hot path", 0, 1), ("a miss", 1, 4), ("growth", 4, 6), ("reclaim", 6, 7))
    for name, first, stop in parts:
        top, bottom = 54 + 76 * first, 54 + 76 * stop - 26
        drawing.box(LEFT - 26, top, 4, bottom - top, fill=INK, edge=PAPER)
        drawing.text(LEFT - 40, (top + bottom) / 2 + 4, name, anchor="end")
