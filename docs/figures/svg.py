"""The few shapes that the figures are made of, as SVG."""

from xml.sax.saxutils import escape

INK = "#24292f"
FAINT = "#d0d7de"
PAPER = "#ffffff"
LIVE = "#4a7ebb"
FREE = "#dbe4ee"
MOVED = "#e0963c"
STYLE = f"""<style>
text {{ font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: {INK} }}
.small {{ font-size: 11px }} .strong {{ font-weight: 600 }} .on {{ fill: {PAPER} }}
</style>"""


class Drawing:
    """Shapes on white paper, in the order in which they were added."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._shapes: list[str] = []
        self._ends: set[str] = set()

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = PAPER,
        edge: str = INK,
        dash: str = "none",
    ) -> None:
        """Add a rectangle."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" '
            f'fill="{fill}" stroke="{edge}" stroke-dasharray="{dash}"/>'
        )

    def text(
        self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "middle"
    ) -> None:
        """Add a line of text; ``kind`` is of ``small``, ``strong`` and ``on``."""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">'
            f"{escape(text)}</text>"
        )

    def arrow(
        self, *points: tuple[float, float], colour: str = INK, width: float = 1
    ) -> None:
        """Add a line through points, with a head at the last of them."""
        self._ends.add(colour)
        line = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" '
            f'stroke-width="{width:g}" marker-end="url(#{_name(colour)})"/>'
        )

    def as_svg(self) -> str:
        """Return the file."""
        heads = "\n".join(
            f'<marker id="{_name(colour)}" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
            for colour in sorted(self._ends)
        )
        shapes = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {self._width} {self._height}" width="{self._width}" '
            f'height="{self._height}">\n<title>{escape(self._title)}</title>\n{STYLE}\n'
            f"<defs>{heads}</defs>\n"
            f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{shapes}\n</svg>\n'
        )


def _name(colour: str) -> str:
    return f"head-{colour.lstrip('#')}"
