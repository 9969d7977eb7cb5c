"""Format an out-of-memory report as text, at most 80 columns wide."""

import textwrap
from collections.abc import Iterator

from madl.errors.advice import advice
from madl.errors.report import Holder, OutOfMemoryReport
from madl.sizes import format_exactly, format_nbytes

_WIDTH = 80
_LABEL_WIDTH = 12
MOST_HOLDERS = 5
"""Tags, and lines, that the text names; the report has more."""


def describe(report: OutOfMemoryReport) -> str:
    """Return what could not be done, the figures, and what to try.

    One line where a device refused and no pool has any figures to add.
    """
    what = f"{report.device}: cannot place {format_exactly(report.requested_nbytes)}"
    figures = list(_figures(report))
    if not figures:
        native = "" if report.native is None else f"; {report.native}"
        return f"{what}{native}. Try: {advice(report)}."
    lines = [what]
    for label, text in figures:
        indent = " " * (2 + _LABEL_WIDTH)
        lines.append(_wrap(f"  {label:<{_LABEL_WIDTH}}{text}", indent))
    return "\n".join([*lines, _wrap(f"Try: {advice(report)}.", " " * 5)])


def _figures(report: OutOfMemoryReport) -> Iterator[tuple[str, str]]:
    """Yield a label and its figures for each line."""
    known = (report.limit_nbytes, report.device_total_nbytes, report.tag_limit)
    if not report.committed_nbytes and known == (None, None, None):
        return
    nbytes = format_nbytes
    if report.capacity_nbytes != report.requested_nbytes:
        yield "rounded", f"to {format_exactly(report.capacity_nbytes)}"
    if report.tag_limit is not None:
        name, limit, live = report.tag_limit
        yield "over", f"the limit of tag {name!r}: {nbytes(live)} of {nbytes(limit)}"
    if report.is_inside_unknown:
        yield "committed", f"not known{_limits(report)}"
        yield from _surroundings(report)
        return
    yield "committed", f"{nbytes(report.committed_nbytes)}{_limits(report)}"
    padding = nbytes(report.padding_nbytes)
    count = report.live_count
    blocks = f"{count} block{'s'[: count != 1]}"
    yield "live", f"{nbytes(report.live_nbytes)} in {blocks}, and {padding} padding"
    largest, cached = nbytes(report.largest_free_nbytes), nbytes(report.cached_nbytes)
    yield (
        "free",
        f"{nbytes(report.free_nbytes)}, largest {largest}, in bins {cached}, "
        f"fragmentation {report.fragmentation_ratio:.2f}",
    )
    yield from _surroundings(report)
    tried = [f"{nbytes(gained)} from {step}" for step, gained in report.tried]
    for label, texts in (
        ("by tag", map(_held, report.tags[:MOST_HOLDERS])),
        ("by line", map(_held, report.lines[:MOST_HOLDERS])),
        ("tried", tried),
    ):
        for text in texts:
            yield label, text
            label = ""


def _surroundings(report: OutOfMemoryReport) -> Iterator[tuple[str, str]]:
    """Yield the figures of the device and of other pools."""
    if report.device_total_nbytes is not None:
        unused = report.device_unused_nbytes
        has = "" if unused is None else f", {format_nbytes(unused)} unused"
        yield "device", f"{format_nbytes(report.device_total_nbytes)}{has}"
    if report.native is not None:
        yield "it said", str(report.native)
    if report.others.committed_nbytes:
        committed, live = map(format_nbytes, report.others)
        yield "other pools", f"{committed} committed, {live} live"


def _limits(report: OutOfMemoryReport) -> str:
    ours, shared = report.limit_nbytes, report.device_limit_nbytes
    text = "" if ours is None else f", limit {format_nbytes(ours)}"
    if shared is not None:
        text += f", limit of all pools {format_nbytes(shared)}"
    return text


def _held(holder: Holder) -> str:
    held = f": {format_nbytes(holder.nbytes)} in {holder.block_count}"
    most = _WIDTH - 2 - _LABEL_WIDTH - len(held)
    name = holder.name
    # The end of a path, or of nested tags, tells more than its start.
    return f"{name if len(name) <= most else f'...{name[3 - most :]}'}{held}"


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
