"""``madl diff``: compare two traces or two snapshots."""

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from madl.cli.output import cell, print_json, print_notes
from madl.cli.pages import Command
from madl.cli.parameters import json_option
from madl.diagnostics.diff import Change, contents_of_snapshot, contents_of_trace
from madl.diagnostics.diff import diff as compare
from madl.diagnostics.traces.reader import open_trace_or_snapshot
from madl.diagnostics.traces.trace import Trace
from madl.sizes import format_nbytes


@click.command(
    cls=Command,
    examples=[
        "madl diff monday.trace.gz today.trace.gz",
        "madl diff before.json after.json --top 3",
    ],
)
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How many tags, and sizes, to list in the tables.",
)
@json_option
def diff(before: str, after: str, top: int, as_json: bool) -> None:
    """Show what grew from the trace or snapshot BEFORE to AFTER.

    Of a trace, what is live at its peak is compared; of a snapshot, what is live.
    Sizes are classes: the least power of two that has room for a block.
    """
    opened = {path: open_trace_or_snapshot(path) for path in (before, after)}
    notes = [
        f"{path}: {note}"
        for path, one in opened.items()
        if isinstance(one, Trace)
        for note in one.notes
    ]
    contents = [
        contents_of_trace(one) if isinstance(one, Trace) else contents_of_snapshot(one)
        for one in (opened[before], opened[after])
    ]
    try:
        found = compare(*contents)
    except ValueError as error:  # one is a trace, the other a snapshot
        raise click.UsageError(str(error)) from None
    if as_json:
        parts = {
            part: [change._asdict() | {"growth": change.growth} for change in changes]
            for part, changes in found._asdict().items()
        }
        print_json(parts | {"notes": notes})
        return
    console = Console()
    console.print(_table("in all", found.totals, len(found.totals)))
    console.print(_table("by tag", found.tags, top))
    console.print(_table("by size", found.sizes, top))
    print_notes(notes)


def _table(title: str, changes: Sequence[Change], most: int) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in ("before", "after", "growth", "blocks"):
        table.add_column(column, justify="right")
    for change in changes[:most]:
        label, as_text, blocks = cell(_label(change)), format_nbytes, ""
        if change.blocks_before is not None:
            blocks = f"{change.blocks_before:,} -> {change.blocks_after:,}"
        elif not change.name.endswith("_nbytes"):
            as_text = "{:,}".format
        growth = f"{'+' if change.growth > 0 else ''}{as_text(change.growth)}"
        figures = as_text(change.before), as_text(change.after), growth
        table.add_row(label, *figures, blocks)
    if len(changes) > most:
        table.caption = f"and {len(changes) - most} more; --top shows them"
    elif not changes:
        table.caption = "nothing changed"
    return table


def _label(change: Change) -> str:
    if change.name.isdigit() and change.blocks_before is not None:
        return f"up to {format_nbytes(int(change.name))}"
    name = change.name.removesuffix("_nbytes").replace("_", " ")
    return name if change.blocks_before is None else change.name
