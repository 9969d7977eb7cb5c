"""``madl export``: convert a trace or snapshot for PyTorch's viewer or Perfetto."""

import os

import click

from madl.cli.output import print_json, print_notes, refuse_the_input, writing
from madl.cli.pages import Command
from madl.cli.parameters import json_option
from madl.diagnostics.chrome_trace import export_chrome_trace
from madl.diagnostics.memory_viz import export_snapshot, export_trace
from madl.diagnostics.traces.lines import printable
from madl.diagnostics.traces.reader import open_trace_or_snapshot
from madl.diagnostics.traces.trace import Trace


@click.command(
    cls=Command,
    examples=[
        "madl export run.trace.gz run.json",
        "madl export snapshot.json snapshot.pickle",
    ],
)
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@json_option
def export(source: str, target: str, as_json: bool) -> None:
    """Write the trace or snapshot SOURCE as a file for other viewers.

    TARGET.pickle is for PyTorch's viewer, https://pytorch.org/memory_viz. TARGET.json
    is a trace for Perfetto, https://ui.perfetto.dev, or chrome://tracing.
    """
    kind = os.path.splitext(target)[1]
    if kind not in (".pickle", ".json"):
        raise click.UsageError(f"TARGET must end in .pickle or .json, got {target!r}")
    refuse_the_input(target, source)
    opened = open_trace_or_snapshot(source)
    if kind == ".json" and not isinstance(opened, Trace):
        raise click.UsageError("a snapshot can be written as .pickle only")
    with writing(target):
        if not isinstance(opened, Trace):
            export_snapshot(opened, target)
        elif kind == ".json":
            export_chrome_trace(opened, target)
        else:
            export_trace(opened, target)
    notes = list(opened.notes) if isinstance(opened, Trace) else []
    if as_json:
        nbytes = os.stat(target).st_size
        print_json(
            {"source": source, "target": target, "nbytes": nbytes, "notes": notes}
        )
    else:
        click.echo(printable(f"wrote {target}"))
        print_notes(notes)
