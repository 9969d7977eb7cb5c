"""First fit with reach: a skip list as it is in memory, and the way of a search."""

from docs.figures.svg import FREE, MOVED, PAPER, Drawing
from madl.core.skiplist import SkipList

SIZES = (32, 16, 48, 24, 40, 16, 96, 64)
GAP = 20
WANTED = 64
BEFORE = 41
"""Blocks that came and went before, after which the heights make a good picture."""
LEFT, STEP, TOP, ROW = 70, 92, 30, 46


def _list() -> SkipList:
    free = SkipList()
    for number in range(BEFORE):
        free.put(10_000 + 100 * number, 10)
    for number in range(BEFORE):
        free.carve(10_000 + 100 * number, 10)
    offset = 0
    for size in SIZES:
        free.put(offset, size)
        offset += size + GAP
    free.check()
    return free


def _nodes(free: SkipList) -> list[int]:
    """Return the records of the list, that of the head first."""
    nodes, node = [0], free.words[2]
    while node:
        nodes.append(node)
        node = free.words[node + 2]
    return nodes


def _links_followed(free: SkipList) -> set[tuple[int, int]]:
    """Return node and level of each link that the search follows."""
    followed, node = set(), 0
    for level in reversed(range(free.height)):
        slot = 2 + 2 * level
        while free.words[node + slot + 1] < WANTED:
            followed.add((node, level))
            node = free.words[node + slot]
    assert free.words[node] == free.find(WANTED), "the figure searches as the code does"
    return followed


def first_fit_with_reach() -> str:
    """Return the figure."""
    free = _list()
    words, nodes, followed = free.words, _nodes(free), _links_followed(free)
    found = free.find(WANTED)
    column = {node: LEFT + STEP * index for index, node in enumerate(nodes)}
    end = LEFT + STEP * len(nodes)
    bottom = TOP + ROW * free.height
    drawing = Drawing(end + 60, bottom + 120, "First fit in a skip list with reach")
    for level in range(free.height + 1):
        y = bottom - ROW * level
        drawing.text(8, y + 4, f"level {level}", kind="small", anchor="start")
        for node in nodes:
            if node and words[node + 1] <= level:
                continue
            stop, reach = words[node + 2 + 2 * level], words[node + 3 + 2 * level]
            is_followed = (node, level) in followed
            x, to = column[node] + 16, (column[stop] if stop else end) - 17
            drawing.arrow(
                (x, y),
                (to, y),
                colour=MOVED if is_followed else "#57606a",
                width=2.5 if is_followed else 1,
            )
            drawing.text((x + to) / 2, y - 6, str(reach), kind="small")
    for node in nodes:
        height = words[node + 1] if node else free.height + 1
        name = f"{words[node + 3]}" if node else "head"
        top = bottom - ROW * (height - 1) - 13
        fill = MOVED if node and words[node] == found else FREE if node else PAPER
        drawing.box(column[node] - 16, top, 32, bottom + 13 - top, fill=fill)
        drawing.text(column[node], bottom + 4, name, kind="strong" if node else "small")
        if node:
            drawing.text(column[node], bottom + 32, f"at {words[node]}", kind="small")
    drawing.text(end, bottom + 4, "end", kind="small")
    lines = (
        "A box is a free block: its bytes, its offset. The number on a link is its "
        "reach: the largest block from the one",
        "it leaves up to, but without, the one it lands on. "
        f"The search for {WANTED} bytes follows a link (orange) only while",
        f"its reach is too small, and goes down a level otherwise: {len(followed)} "
        "links here, past 6 blocks that are too small.",
    )
    for number, line in enumerate(lines):
        drawing.text(8, bottom + 62 + 19 * number, line, anchor="start")
    return drawing.as_svg()
