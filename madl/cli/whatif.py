"""``madl whatif``: explain running out of memory, and simulate other settings."""

from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from madl.cli.output import cell, event_progress, figures_table, print_json
from madl.cli.pages import Command
from madl.cli.parameters import ByteCount, file_or_example, json_option
from madl.cli.report import holders_table
from madl.diagnostics.whatif_report import Failure, WhatIf, what_if
from madl.sizes import format_nbytes


@click.command(
    cls=Command,
    examples=[
        "madl whatif --example resnet50-train --limit 2GiB",
        "madl whatif run.pickle",
    ],
)
@file_or_example
@click.option(
    "--limit",
    type=ByteCount(),
    help="What the device has for the program, as in 24GiB. [default: what a "
    "snapshot tells of the out-of-memory error]",
)
@click.option("--device", type=int, help="Which GPU of a snapshot.")
@json_option
def whatif(file: str, limit: int | None, device: int | None, as_json: bool) -> None:
    """Say which setting of PyTorch would have avoided running out.

    FILE is what torch.cuda.memory._dump_snapshot writes, or a trace. It is replayed
    through models of PyTorch's allocator with several settings, and through madl's
    pool. Nothing in the file is executed.
    """
    with event_progress("replaying", hidden=as_json) as progress:
        found = what_if(
            file, device=device, capacity_nbytes=limit, on_progress=progress
        )
    if as_json:
        print_json(_figures(found))
    else:
        _print(Console(), found)


def _figures(found: WhatIf) -> dict[str, Any]:
    figures = found._asdict()
    figures["holders"] = [one._asdict() for one in found.holders]
    figures["outcomes"] = [
        {key: value for key, value in one._asdict().items() if key != "settings"}
        for one in found.outcomes
    ]
    if found.failure is not None:
        figures["failure"] = failure = found.failure._asdict()
        failure["holders"] = [one._asdict() for one in found.failure.holders]
        ratio = found.failure.free.fragmentation_ratio
        failure["free"] = found.failure.free._asdict() | {"fragmentation_ratio": ratio}
    return figures


def _print(console: Console, found: WhatIf) -> None:
    if found.failure is not None:
        console.print(_failure_table(found.failure))
        console.print(holders_table(found.failure.holders, "who held what"))
    elif found.holders:
        console.print(holders_table(found.holders, "who holds most at the peak"))
    if found.outcomes:
        console.print(_outcomes_table(found))
    for line in _closing(found):
        console.print(cell(line), highlight=False)


def _failure_table(failure: Failure) -> Table:
    left = failure.device_free_nbytes
    rows: dict[str, str | Text] = {
        "requested": format_nbytes(failure.requested_nbytes),
        "by": cell(failure.place or "not recorded"),
        "live": format_nbytes(failure.live_nbytes),
        "reserved": format_nbytes(failure.reserved_nbytes),
        "reserved, free": format_nbytes(failure.free.nbytes),
        "  largest piece": format_nbytes(failure.free.largest_nbytes),
        "  fragmentation": f"{failure.free.fragmentation_ratio:.1%}",
        "the device had left": "not said" if left is None else format_nbytes(left),
    }
    table = figures_table("out of memory", rows)
    table.title_justify = "left"
    return table


def _outcomes_table(found: WhatIf) -> Table:
    title = cell(f"what {found.name} would reserve")
    table = Table(title=title, title_justify="left")
    table.add_column("allocator", overflow="fold")
    for heading in ("peak reserve", "reserve / live"):
        table.add_column(heading, justify="right", no_wrap=True)
    knows_capacity = found.capacity_nbytes is not None
    if knows_capacity:
        table.add_column("fits", no_wrap=True)
    for one in found.outcomes:
        ratio = one.peak_reserved_nbytes / max(found.peak_live_nbytes, 1)
        cells = [
            f"{one.name} (in use)" if one.is_in_use else one.name,
            format_nbytes(one.peak_reserved_nbytes),
            f"{ratio:.3f}",
        ]
        if knows_capacity:
            cells.append("yes" if one.fits else "no")
        table.add_row(*cells)
    return table


def _closing(found: WhatIf) -> list[str]:
    lines = [f"Peak live: {format_nbytes(found.peak_live_nbytes)}."]
    if found.capacity_nbytes is not None:
        had = format_nbytes(found.capacity_nbytes)
        lines.append(f"The device had {had} for the program.")
    if found.recorded_peak_nbytes is not None:
        recorded = f"PyTorch reserved {format_nbytes(found.recorded_peak_nbytes)}"
        if found.model_error is not None:
            recorded += f"; the model in use is {found.model_error:+.1%} off here"
        lines.append(f"{recorded}.")
    lines.append(f"{found.advice}.")
    if found.export is not None:
        lines.append(f"  export PYTORCH_ALLOC_CONF={found.export}")
        lines.append("  (before PyTorch 2.9: PYTORCH_CUDA_ALLOC_CONF)")
        if "garbage_collection" in found.export:
            lines.append(
                "  and call torch.cuda.set_per_process_memory_fraction(1.0), without "
                "which it has no effect"
            )
    return lines + [f"Note: {note}" for note in found.notes]
