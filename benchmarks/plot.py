"""A table as an SVG: a line for each row, on a logarithmic scale."""

import math
from html import escape

from benchmarks.answer import Cell, Table
from benchmarks.timing import Spread

WIDTH, HEIGHT = 960, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 300, 50, 50
COLOURS = ("#c1121f", "#0b6e4f", "#1d4e89", "#e09f3e", "#6a4c93", "#457b9d", "#8d5524")


def svg(table: Table) -> str:
    """Return the plot."""
    rows = [(str(row[0]), [_number(cell) for cell in row[1:]]) for row in table.rows]
    numbers = [number for _, row in rows for number in row if number]
    low = math.floor(math.log10(min(numbers)))
    high = math.ceil(math.log10(max(numbers)))

    def x(place: int) -> float:
        return LEFT + place * (WIDTH - LEFT - RIGHT) / max(len(table.columns) - 2, 1)

    def y(number: float) -> float:
        part = (math.log10(number) - low) / max(high - low, 1)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, TOP - 25, table.title, size=15)]
    for power in range(low, high + 1):
        level = y(10**power)
        parts.append(_line([(LEFT, level), (WIDTH - RIGHT, level)], "#ddd", 1))
        parts.append(_text(LEFT - 8, level + 4, f"{10**power:,}", anchor="end"))
    for place, name in enumerate(table.columns[1:]):
        parts.append(_text(x(place), HEIGHT - BOTTOM + 20, name, anchor="middle"))
    for place, (name, row) in enumerate(rows):
        colour = COLOURS[place % len(COLOURS)]
        dash = "6 3" if place >= len(COLOURS) else ""  # the colours begin again
        points = [(x(i), y(number)) for i, number in enumerate(row) if number]
        # madl's own lines are the thick ones.
        parts.append(_line(points, colour, 3 if name.startswith("madl") else 1.5, dash))
        level = TOP + 18 * place
        start = WIDTH - RIGHT + 20
        parts.append(_line([(start, level), (start + 22, level)], colour, 3, dash))
        parts.append(_text(start + 28, level + 4, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _number(cell: Cell) -> float | None:
    if isinstance(cell, Spread):
        return cell.median
    return float(cell) if isinstance(cell, (int, float)) else None


def _line(
    points: list[tuple[float, float]], colour: str, width: float, dash: str = ""
) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" '
        f'stroke-width="{width}" stroke-dasharray="{dash}"/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
