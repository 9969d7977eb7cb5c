"""``madl export``: convert a trace or snapshot for PyTorch's viewer or Perfetto."""

import os
from collections.abc import Callable
from functools import partial

import click

from madl.cli.output import print_json, print_notes, refuse_the_input, writing
from madl.cli.pages import Command
from madl.cli.parameters import json_option
from madl.diagnostics.chrome_trace import export_chrome_trace
from madl.diagnostics.histories import open_file, past_of, refuse_device
from madl.diagnostics.memory_viz import (
    export_snapshot,
    export_torch_snapshot,
    export_trace,
)
from madl.diagnostics.torch.snapshot import TorchSnapshot
from madl.diagnostics.traces.lines import printable
from madl.pool.stats import PoolSnapshot


@click.command(
    cls=Command,
    examples=[
        "madl export run.trace.gz run.json",
        "madl export snapshot.json snapshot.pickle",
        "madl export run.pickle run.json",
    ],
)
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "--device", type=int, help="Which GPU of a PyTorch snapshot, for TARGET.json."
)
@json_option
def export(source: str, target: str, device: int | None, as_json: bool) -> None:
    """Write the trace or snapshot SOURCE as a file for other viewers.

    TARGET.pickle is for PyTorch's viewer, https://pytorch.org/memory_viz. TARGET.json
    is a trace for Perfetto, https://ui.perfetto.dev, or chrome://tracing. Of what
    torch.cuda.memory._dump_snapshot wrote, TARGET.pickle is what its latest versions
    write, with all GPUs and with the line of the program in place of each stack.
    """
    kind = os.path.splitext(target)[1]
    if kind not in (".pickle", ".json"):
        raise click.UsageError(f"TARGET must end in .pickle or .json, got {target!r}")
    refuse_the_input(target, source)
    write, notes = _writer(source, kind, device)
    with writing(target):
        write(target)
    if as_json:
        nbytes = os.stat(target).st_size
        figures = {"source": source, "target": target, "nbytes": nbytes}
        print_json(figures | {"notes": list(notes)})
    else:
        click.echo(printable(f"wrote {target}"))
        print_notes(notes)


def _writer(
    source: str, kind: str, device: int | None
) -> tuple[Callable[[str], None], tuple[str, ...]]:
    """Return what writes a file's content to a path, and notes on that content."""
    opened = open_file(source)
    if isinstance(opened, TorchSnapshot):
        if kind == ".json":
            past = past_of(opened, device)
            return partial(export_chrome_trace, past.trace), past.history.notes
        if device is not None:
            raise click.UsageError("a .pickle has all GPUs. Try: leave --device out")
        return partial(export_torch_snapshot, opened), ()
    refuse_device(opened, source, device)
    if isinstance(opened, PoolSnapshot):
        if kind == ".json":
            raise click.UsageError(
                "a snapshot of a pool can be written as .pickle only"
            )
        return partial(export_snapshot, opened), ()
    export_as = export_chrome_trace if kind == ".json" else export_trace
    return partial(export_as, opened), opened.notes
