"""``madl replay``: replay a trace through a pool, and print its figures."""

import platform
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from madl import hotpath
from madl.backends.protocol import Capability
from madl.cli.output import (
    cell,
    event_progress,
    figures_table,
    print_json,
    print_notes,
)
from madl.cli.pages import Command
from madl.cli.parameters import ByteCount, DeviceName, file_or_example, json_option
from madl.diagnostics.replay import Replay
from madl.diagnostics.replay import replay as replay_trace
from madl.diagnostics.runs.map import LEGEND, occupancy_line
from madl.diagnostics.runs.verify import verify
from madl.diagnostics.traces.reader import open_trace
from madl.diagnostics.traces.trace import Trace
from madl.errors import MadlError
from madl.pool import Pool
from madl.pool.allocate import parts_of
from madl.pool.options import FITS, Fit
from madl.sizes import format_nbytes

_CONTENT = Capability.HOST_ACCESS | Capability.COPY | Capability.FILL
"""A device with any of these has bytes that can be written."""


@click.command(
    cls=Command,
    examples=[
        "madl replay --example gpt2-train",
        "madl replay run.trace.gz --limit 64MiB --page-size 64KiB",
        "madl replay run.trace.gz --device cpu --touch --verify --json",
    ],
)
@file_or_example
@click.option(
    "--device",
    type=DeviceName(),
    default="sim",
    show_default=True,
    help="sim places offsets only, in up to 1 TiB; cpu and others, such as opencl:0, "
    "take memory.",
)
@click.option(
    "--fit",
    type=click.Choice(FITS),
    default="first",
    show_default=True,
    help="Take the lowest free block that is large enough, or the smallest.",
)
@click.option(
    "--page-size",
    type=ByteCount(),
    help="Memory is taken in pages of so many bytes, as in 64KiB. [default: 2MiB]",
)
@click.option(
    "--limit", type=ByteCount(), help="Take no more from the device, as in 8GiB."
)
@click.option(
    "--no-recycle",
    is_flag=True,
    help="Take new pages even while taken ones lie unused somewhere else.",
)
@click.option("--touch", is_flag=True, help="Write to every byte; not on sim.")
@click.option(
    "--verify",
    "is_verified",
    is_flag=True,
    help="Then replay it again, and read back what is written to each block.",
)
@json_option
def replay(
    file: str,
    device: str,
    fit: Fit,
    page_size: int | None,
    limit: int | None,
    no_recycle: bool,
    touch: bool,
    is_verified: bool,
    as_json: bool,
) -> None:
    """Replay FILE through a pool; report what the pool took for it.

    FILE is a trace in madl-trace v1, the journal of a recording that has not ended, a
    log of RMM or Umpire, or a CSV with id,lower,upper,size.

    In the report, live is what the program holds, committed what the pool has taken
    for it. A recycled page was moved from where it lay unused. Bins hold freed blocks
    that are handed out again as they are.
    """
    loaded = open_trace(file)
    pool = _pool(device, limit, fit, page_size, recycle=not no_recycle)
    _refuse_without_memory(pool, touch=touch, is_verified=is_verified)
    policy = f"{fit} fit, {'no recycling' if no_recycle else 'recycling'}"
    if not parts_of(pool).options.pooling:  # MADL_POOL=off; and of shared memory
        policy = "no pooling"
    events = (1 + is_verified) * len(loaded)
    with pool, event_progress("replaying", events, hidden=as_json) as progress:
        result = replay_trace(loaded, pool, touch=touch, on_progress=progress)
        if is_verified:
            verified = verify(loaded, pool, on_progress=progress)
    figures = _figures(loaded, pool, policy, result)
    if is_verified:
        figures["verified_nbytes"] = verified.nbytes
    if as_json:
        print_json(figures)
    else:
        _print_table(figures, result)
        print_notes(loaded.notes)


def _pool(
    device: str, limit: int | None, fit: Fit, page_size: int | None, *, recycle: bool
) -> Pool:
    """Return a pool; an option that does not suit the device is misuse."""
    try:
        return Pool(device, limit=limit, fit=fit, recycle=recycle, page_size=page_size)
    except MadlError:  # of the device or the environment, some of which are ValueErrors
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _refuse_without_memory(pool: Pool, *, touch: bool, is_verified: bool) -> None:
    option = "--touch" if touch else "--verify" if is_verified else None
    if option is not None and not pool.capabilities & _CONTENT:
        text = f"{option} needs a device with memory. Try: --device cpu"
        raise click.UsageError(text)


def _figures(
    trace: Trace, pool: Pool, policy: str, result: Replay
) -> dict[str, object]:
    stats = result.stats
    return {
        "trace": trace.name,
        "device": pool.device,
        "policy": policy,
        "page_nbytes": pool.page_nbytes,
        "limit_nbytes": pool.limit_nbytes,
        "core": "compiled" if hotpath.IS_COMPILED else "pure Python",
        "python": platform.python_version(),
        "events": len(trace),
        "allocations": trace.allocations,
        "peak_live_nbytes": result.peak_live_nbytes,
        "peak_committed_nbytes": result.peak_committed_nbytes,
        "committed_over_live": result.committed_over_live,
        "backend_calls": stats.backend_calls,
        "recycled_pages": stats.recycled_pages,
        "served_by_bins": 1 - stats.miss_count / max(stats.allocation_count, 1),
        "search_steps_per_miss": stats.search_steps / max(stats.miss_count, 1),
        "live_at_end_nbytes": stats.live_nbytes,
        "notes": list(trace.notes),
        "seconds": result.seconds,
        "ns_per_event": result.ns_per_event,
        "loop_ns_per_event": result.loop_ns_per_event,
    }


def _print_table(figures: dict[str, Any], result: Replay) -> None:
    title = cell(f"{figures['trace']} on {figures['device']}")
    limit = figures["limit_nbytes"]
    rows: dict[str, str | Text] = {
        "policy": figures["policy"],
        "core": f"{figures['core']}, Python {figures['python']}",
        "page": format_nbytes(figures["page_nbytes"]),
        "limit": "none" if limit is None else format_nbytes(limit),
        "events": f"{figures['events']:,}",
        "allocations": f"{figures['allocations']:,}",
        "peak live": format_nbytes(figures["peak_live_nbytes"]),
        "peak committed": format_nbytes(figures["peak_committed_nbytes"]),
        "committed / live": f"{figures['committed_over_live']:.4f}",
        "backend calls": f"{figures['backend_calls']:,}",
        "recycled pages": f"{figures['recycled_pages']:,}",
        "allocations served by bins": f"{figures['served_by_bins']:.1%}",
        "ns per event": f"{figures['ns_per_event']:,.0f}",
        "  of which the loop": f"{figures['loop_ns_per_event']:.0f}",
    }
    if "verified_nbytes" in figures:
        rows["written and read back"] = format_nbytes(figures["verified_nbytes"])
    console = Console()
    console.print(figures_table(title, rows))
    line = occupancy_line(result.at_peak, width=min(console.width, 80))
    for text in ("at the peak:", line, LEGEND):
        console.print(text, markup=False, highlight=False)
