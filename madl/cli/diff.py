"""``madl diff``: compare two traces or two snapshots."""

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from madl.cli.output import cell, print_json, print_notes
from madl.cli.pages import Command
from madl.cli.parameters import json_option
from madl.diagnostics.diff import (
    Change,
    Contents,
    contents_of_history,
    contents_of_snapshot,
    contents_of_trace,
)
from madl.diagnostics.diff import diff as compare
from madl.diagnostics.histories import device_of, open_file, refuse_device
from madl.diagnostics.torch.past import torch_past
from madl.diagnostics.torch.snapshot import TorchSnapshot
from madl.diagnostics.traces.trace import Trace
from madl.pool.stats import PoolSnapshot
from madl.sizes import format_nbytes


@click.command(
    cls=Command,
    examples=[
        "madl diff monday.trace.gz today.trace.gz",
        "madl diff before.json after.json --top 3",
        "madl diff step10.pickle step500.pickle",
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
@click.option("--device", type=int, help="Which GPU of PyTorch snapshots.")
@json_option
def diff(before: str, after: str, top: int, device: int | None, as_json: bool) -> None:
    """Show what grew from the trace or snapshot BEFORE to AFTER.

    Of a trace, what is live at its peak is compared; of a snapshot, of a pool or of
    PyTorch, what is live. Sizes are classes: the least power of two that has room for a
    block.
    """
    earlier, later = open_file(before), open_file(after)
    if isinstance(later, TorchSnapshot):
        device = device_of(later, device)  # and of BEFORE the same
    opened = {before: earlier, after: later}
    read = {path: _read(one, path, device) for path, one in opened.items()}
    notes = [f"{path}: {note}" for path, (_, said) in read.items() for note in said]
    try:
        found = compare(read[before][0], read[after][0])
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


def _read(
    one: Trace | PoolSnapshot | TorchSnapshot, path: str, device: int | None
) -> tuple[Contents, tuple[str, ...]]:
    """Return what a file holds, and notes on it."""
    if isinstance(one, TorchSnapshot):
        history = torch_past(one, device_of(one, device)).history
        return contents_of_history(history), history.notes
    refuse_device(one, path, device)
    if isinstance(one, PoolSnapshot):
        return contents_of_snapshot(one), ()
    return contents_of_trace(one), one.notes


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
