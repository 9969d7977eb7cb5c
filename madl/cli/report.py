"""``madl report``: the figures of a history, and its curve, in a terminal."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from madl.cli.output import cell, event_progress, figures_table, print_json
from madl.cli.pages import Command
from madl.cli.parameters import ByteCount, file_or_example, json_option
from madl.diagnostics.figures import Summary, summarize
from madl.diagnostics.histories import open_history
from madl.diagnostics.history import History
from madl.diagnostics.runs.map import LEGEND, map_snapshot, occupancy_line
from madl.sizes import format_nbytes

CURVE_HEIGHT = 8
WIDTH = 80
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII = " ..::++##"


@click.command(
    cls=Command,
    examples=[
        "madl report --example gpt2-train",
        "madl report run.trace.gz --limit 2GiB",
        "madl report snapshot.json --json",
    ],
)
@file_or_example
@click.option(
    "--limit", type=ByteCount(), help="What the pool may commit, or the device had."
)
@click.option("--device", type=int, help="Which GPU of a PyTorch snapshot.")
@json_option
def report(file: str, limit: int | None, device: int | None, as_json: bool) -> None:
    """Print what FILE shows of memory: peaks, holders, fragmentation.

    FILE is a trace of any kind, which is replayed on sim, a snapshot of a pool, or
    what torch.cuda.memory._dump_snapshot writes.
    """
    with event_progress("placing", hidden=as_json) as progress:
        history = open_history(file, limit=limit, device=device, on_progress=progress)
    summary = summarize(history)
    if as_json:
        print_json(_figures(summary))
    else:
        _print(Console(), history, summary)


def _figures(summary: Summary) -> dict[str, Any]:
    figures = summary._asdict()
    figures["at_peak"] = {
        "free_nbytes": summary.at_peak.nbytes,
        "largest_free_nbytes": summary.at_peak.largest_nbytes,
        "fragmentation_ratio": summary.at_peak.fragmentation_ratio,
    }
    figures["committed_over_live"] = summary.committed_over_live
    for key in ("holders", "bands", "markers"):
        figures[key] = [one._asdict() for one in figures[key]]
    return figures


def _print(console: Console, history: History, summary: Summary) -> None:
    width = min(console.width, WIDTH)
    console.print(_figures_table(summary))
    console.print(holders_table(summary.holders, "who holds most at the peak"))
    sizes = Table(title="sizes asked for", title_justify="left")
    for heading in ("size", "blocks", "bytes in all"):
        sizes.add_column(heading, justify="left" if heading == "size" else "right")
    for band in summary.bands:
        if band.blocks:
            sizes.add_row(band.name, f"{band.blocks:,}", format_nbytes(band.nbytes))
    console.print(sizes)
    peak = format_nbytes(summary.peak_live_nbytes)
    console.print(f"live bytes over time, up to {peak}:", highlight=False)
    levels = _ASCII if console.options.ascii_only else _EIGHTHS
    for line in curve_lines(history.live_nbytes.tolist(), width, levels):
        _print_line(console, line)
    console.print("at the peak, all that was ever committed, end to end:")
    _print_line(
        console, occupancy_line(map_snapshot(history, summary.peak_moment), width=width)
    )
    console.print(LEGEND.partition("  |")[0], markup=False, highlight=False)
    for note in summary.notes:
        console.print(cell(f"Note: {note}"), highlight=False)


def _print_line(console: Console, line: str) -> None:
    """Print a drawing as it is: never wrapped, and no character of it is markup."""
    console.print(line, markup=False, highlight=False, overflow="crop", no_wrap=True)


def _figures_table(summary: Summary) -> Table:
    limit, free = summary.limit_nbytes, summary.at_peak
    rows: dict[str, str | Text] = {
        "placed by": summary.placed_by,
        "events": f"{summary.events:,}",
        "blocks": f"{summary.blocks:,}",
        "peak live": format_nbytes(summary.peak_live_nbytes),
        "  at event": f"{summary.peak_moment:,}",
        "peak committed": format_nbytes(summary.peak_committed_nbytes),
        "committed / live": f"{summary.committed_over_live:.4f}",
        "limit": "none" if limit is None else format_nbytes(limit),
        "free at the peak": format_nbytes(free.nbytes),
        "  largest piece": format_nbytes(free.largest_nbytes),
        "  fragmentation": f"{free.fragmentation_ratio:.1%}",
        "live at the end": format_nbytes(summary.live_at_end_nbytes),
    }
    return figures_table(cell(f"{summary.name} on {summary.device}"), rows)


def holders_table(holders: Iterable[tuple[str, int, int]], title: str) -> Table:
    """Return a table of names, bytes and blocks."""
    table = Table(title=title, title_justify="left")
    table.add_column("holder", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("blocks", justify="right", no_wrap=True)
    for name, nbytes, blocks in holders:
        table.add_row(cell(name), format_nbytes(nbytes), f"{blocks:,}")
    return table


def curve_lines(values: list[int], width: int, levels: str = _EIGHTHS) -> list[str]:
    """Draw values as columns of text, each the largest of its part of them.

    >>> curve_lines([0, 1, 2, 4], 4)[-1]
    ' ███'
    """
    highest, count = max(*values, 1), min(width, len(values))
    edges = [column * len(values) // count for column in range(count + 1)]
    tops = [max(values[first:stop]) for first, stop in pairwise(edges)]
    eighths = [-(-top * CURVE_HEIGHT * 8 // highest) for top in tops]
    return [
        "".join(levels[min(max(top - row * 8, 0), 8)] for top in eighths)
        for row in reversed(range(CURVE_HEIGHT))
    ]
