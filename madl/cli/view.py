"""``madl view``: write a history as an HTML page."""

import os

import click

from madl.cli.output import (
    event_progress,
    print_json,
    print_notes,
    refuse_the_input,
    writing,
)
from madl.cli.pages import Command
from madl.cli.parameters import ByteCount, file_or_example, json_option
from madl.diagnostics.histories import open_history
from madl.diagnostics.traces.lines import printable
from madl.diagnostics.traces.writer import write_whole
from madl.diagnostics.view import view_page
from madl.errors import MadlError
from madl.sizes import format_nbytes


@click.command(
    cls=Command,
    examples=["madl view run.trace.gz -o run.html", "madl view --example vit-train"],
)
@file_or_example
@click.option(
    "-o", "--output", type=click.Path(), help="The page to write. [default: FILE.html]"
)
@click.option(
    "--limit", type=ByteCount(), help="What the pool may commit, or the device had."
)
@click.option("--device", type=int, help="Which GPU of a PyTorch snapshot.")
@json_option
def view(
    file: str, output: str | None, limit: int | None, device: int | None, as_json: bool
) -> None:
    """Draw FILE as one HTML page that works offline.

    FILE is a trace of any kind, a snapshot of a pool, or what
    torch.cuda.memory._dump_snapshot writes. The page shows live bytes over time, where
    each block lies at any moment, who holds it, and fragmentation.
    """
    path = output or f"{os.path.basename(file)}.html"
    refuse_the_input(path, file)
    with event_progress("placing", hidden=as_json) as progress:
        history = open_history(file, limit=limit, device=device, on_progress=progress)
    try:
        page = view_page(history).encode()
    except ImportError as error:
        raise MadlError(str(error)) from None
    with writing(path):
        write_whole(path, page)
    figures = {
        "page": path,
        "nbytes": len(page),
        "events": history.last_moment,
        "notes": list(history.notes),
    }
    if as_json:
        print_json(figures)
    else:
        told = printable(f"{path}: {format_nbytes(len(page))}, open it in a browser")
        # To stderr if the page may have gone to stdout, as to a pipe.
        click.echo(told, err=not os.path.isfile(path))
        print_notes(history.notes)
