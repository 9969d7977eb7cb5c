"""The report of an out-of-memory error as a table on stderr."""

from rich.console import Console
from rich.table import Table

from madl.errors import OutOfMemoryReport
from madl.sizes import format_nbytes


def out_of_memory_table(report: OutOfMemoryReport) -> None:
    """Print why a request could not be placed."""
    table = Table(title=f"out of memory on {report.device}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "requested": report.requested_nbytes,
        "requested, rounded": report.capacity_nbytes,
        "limit": report.limit_nbytes,
        "committed": report.committed_nbytes,
        "live": report.live_nbytes,
        "padding of live blocks": report.padding_nbytes,
        "free in bins": report.cached_nbytes,
        "free, bins included": report.free_nbytes,
        "largest free block": report.largest_free_nbytes,
    }
    for name, nbytes in rows.items():
        table.add_row(name, "none" if nbytes is None else format_nbytes(nbytes))
    for step, gained in report.tried:
        table.add_row(f"tried: {step}", f"freed {format_nbytes(gained)}")
    if report.native is not None:
        table.add_row("the device said", str(report.native))
    Console(stderr=True).print(table)
