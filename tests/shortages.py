"""The five ways to run out of memory, and the sums that every report has to keep."""

from collections.abc import Callable

from madl import Memory, OutOfMemoryError, OutOfMemoryReport, Pool

Held = list[Memory]


def report_of(work: Callable[[], object]) -> OutOfMemoryReport:
    """Return the report of the error that a piece of work ends with."""
    try:
        work()
    except OutOfMemoryError as error:
        return error.report
    raise AssertionError("there was memory for it")


def advice_of(report: OutOfMemoryReport) -> str:
    """Return the advice in the text of a report, on one line."""
    return " ".join(str(OutOfMemoryError(report)).partition("Try: ")[2].split())


def check_sums(report: OutOfMemoryReport) -> None:
    """Verify that all figures of a report agree, and that its text is narrow."""
    text = str(OutOfMemoryError(report))
    assert max(map(len, text.splitlines())) <= 80, text
    live, padding, free = (
        report.live_nbytes,
        report.padding_nbytes,
        report.free_nbytes,
    )
    assert live + padding + free == report.committed_nbytes
    assert 0 <= report.cached_nbytes <= free
    assert 0 <= report.largest_free_nbytes <= free
    assert report.allocation_count - report.free_count == report.live_count
    for holders in filter(None, (report.tags, report.lines)):
        assert sum(holder.nbytes for holder in holders) == live
        assert sum(holder.padding_nbytes for holder in holders) == padding
        assert sum(holder.block_count for holder in holders) == report.live_count
    if report.limit_nbytes is not None:
        assert report.committed_nbytes <= report.limit_nbytes
    if report.device_total_nbytes is not None:
        assert report.device_unused_nbytes is not None
        assert 0 <= report.device_unused_nbytes <= report.device_total_nbytes
    assert report.others.live_nbytes <= report.others.committed_nbytes
    assert report.capacity_nbytes >= report.requested_nbytes


def fill(pool: Pool, nbytes: int, *, tag: str | None = None) -> Held:
    """Allocate blocks of one size until the pool has no more."""
    held = []
    try:
        while True:
            held.append(pool.allocate(nbytes, tag=tag))
    except OutOfMemoryError:
        return held


def leak(pool: Pool, nbytes: int) -> None:
    """Work in steps, each of which keeps one block too many, until it fails."""
    kept = []
    while True:
        for _ in range(4):
            pool.allocate(nbytes)
        kept.append(pool.allocate(nbytes, tag="loss"))
