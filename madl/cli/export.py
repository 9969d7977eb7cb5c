"""``madl export``: a trace or a snapshot, for another program's viewer."""

from pathlib import Path

import click

from madl.diagnostics.chrome_trace import export_chrome_trace
from madl.diagnostics.inputs import open_trace_or_snapshot
from madl.diagnostics.memory_viz import export_snapshot, export_trace
from madl.diagnostics.names import printable
from madl.diagnostics.trace import Trace


@click.command()
@click.argument("source")
@click.argument("target")
def export(source: str, target: str) -> None:
    """Write the trace or snapshot SOURCE as a file for other viewers.

    TARGET.pickle is for PyTorch's viewer, https://pytorch.org/memory_viz. TARGET.json
    is a trace for Perfetto, https://ui.perfetto.dev, or chrome://tracing.
    """
    kind = Path(target).suffix
    if kind not in (".pickle", ".json"):
        raise click.UsageError(f"TARGET must end in .pickle or .json, got {target!r}")
    opened = open_trace_or_snapshot(source)
    try:
        if not isinstance(opened, Trace):
            if kind == ".json":
                raise click.UsageError("a snapshot can be written as .pickle only")
            export_snapshot(opened, target)
        elif kind == ".json":
            export_chrome_trace(opened, target)
        else:
            export_trace(opened, target)
    except OSError as error:
        raise click.UsageError(f"cannot write {target!r}: {error.strerror}") from None
    click.echo(printable(f"wrote {target}"))
