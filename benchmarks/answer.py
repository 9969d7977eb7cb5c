"""What a benchmark answers: tables for readers, figures to compare with promises."""

from dataclasses import dataclass, field

from benchmarks.timing import Spread, shown

Cell = Spread | float | int | str | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Rows under column names; the first column says what a row is."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    is_plotted: bool = False

    def markdown(self) -> str:
        """Return a table that lines up in a terminal and is Markdown too."""
        lines = [[*self.columns], *([text(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        lines.insert(1, rule)
        shaped = [
            " | ".join(
                [line[0].ljust(widths[0])]
                + [
                    cell.rjust(width)
                    for cell, width in zip(line[1:], widths[1:], strict=True)
                ]
            )
            for line in lines
        ]
        return "\n".join([f"**{self.title}**", "", *(f"| {line} |" for line in shaped)])

    def as_dict(self) -> dict[str, object]:
        """Return the table as plain containers."""
        rows = [
            dict(zip(self.columns, map(plain, row), strict=True)) for row in self.rows
        ]
        return {"title": self.title, "rows": rows}


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    question: str
    tables: tuple[Table, ...]
    figures: dict[str, float] = field(default_factory=dict)
    """By the names that ``bounds`` uses."""
    notes: tuple[str, ...] = ()
    """What is missing and why, and how something was measured."""

    def markdown(self) -> str:
        """Return the answer as Markdown."""
        parts = [f"## {self.question}", *(table.markdown() for table in self.tables)]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, object]:
        """Return the answer as plain containers."""
        return {
            "question": self.question,
            "tables": [table.as_dict() for table in self.tables],
            "figures": self.figures,
            "notes": list(self.notes),
        }


def text(cell: Cell) -> str:
    """Return what a table shows."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return shown(cell)
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def plain(cell: Cell) -> object:
    """Return what JSON shows."""
    return cell._asdict() if isinstance(cell, Spread) else cell
