"""Diagnose an out-of-memory report: the one piece of advice that would help.

Each function looks for one cause and returns what to do about it, or None. The first
that finds its cause wins, so what is certain comes before what is likely.
"""

from madl.errors.report import OutOfMemoryReport
from madl.sizes import format_at_least, format_exactly, format_nbytes


def advice(report: OutOfMemoryReport) -> str:
    """Return what to try, as the end of a sentence that begins with "Try: "."""
    for look in (
        _tag_limit,
        _too_large,
        _interrupting,
        _pieces,
        _other_pools,
        _addresses,
        _growth,
        _other_programs,
        _limit,
        _all_ours,
    ):
        found = look(report)
        if found is not None:
            return found
    return "free some memory, or end other programs that use this device"


def _tag_limit(report: OutOfMemoryReport) -> str | None:
    limit = report.tag_limit
    if limit is None:
        return None
    enough = limit.live_nbytes + report.requested_nbytes
    free_some = "a smaller request"
    if report.requested_nbytes <= limit.limit_nbytes:
        free_some = f"free what tag {limit.name!r} holds"
    return f"{free_some}, or give the tag a limit of {format_at_least(enough)}"


def _too_large(report: OutOfMemoryReport) -> str | None:
    """Look for a request that an empty pool could not place either."""
    limits = (report.limit_nbytes, report.device_limit_nbytes)
    limit = min((one for one in limits if one is not None), default=None)
    needed = max(report.least_limit_nbytes, report.capacity_nbytes)
    total = report.device_total_nbytes
    if total is not None and needed > total:
        return f"a smaller request: the device has {format_nbytes(total)} in all"
    if limit is None or report.capacity_nbytes <= limit:
        return None
    return f"a limit of at least {format_at_least(needed)}, or a smaller request"


def _interrupting(report: OutOfMemoryReport) -> str | None:
    """Look for a re-entrant request, which may not touch the free blocks."""
    if not report.is_inside_unknown:
        return None
    return (
        "allocate outside of finalizers, signal handlers and listeners: this request "
        "interrupted another, and so cannot have what is free in the pool"
    )


def _pieces(report: OutOfMemoryReport) -> str | None:
    """Look for enough free memory that lies in too small pieces."""
    largest = report.largest_free_nbytes
    if not largest < report.capacity_nbytes <= report.free_nbytes:
        return None
    if report.enough_page_nbytes is not None:
        return (
            "enough is free, but in parts of pages: "
            f"page_size={format_nbytes(report.enough_page_nbytes)!r} lets the pool use "
            "it"
        )
    return (
        f"enough is free, but in pieces of {format_nbytes(largest)} at most: free "
        "long-lived memory first, or allocate the large blocks earlier"
    )


def _growth(report: OutOfMemoryReport) -> str | None:
    """Look for a leak: much is freed, and yet more and more is live."""
    group = report.largest_group
    if not report.is_growing or group is None:
        return None
    tag = "without a tag" if group.tag is None else f"with tag {group.tag!r}"
    where = f"from {group.line}" if group.line else "madl.keep_stacks() tells the lines"
    blocks = f"{group.block_count} block{'s'[: group.block_count != 1]}"
    return (
        f"look for a leak: through {report.allocation_count} allocations ever more "
        f"stayed live, most of it {blocks} of {format_exactly(group.block_nbytes)} "
        f"{tag}; {where}"
    )


def _other_pools(report: OutOfMemoryReport) -> str | None:
    """Look for memory that other pools of the device keep and do not use."""
    unused = report.others.unused_nbytes
    missing = _missing_nbytes(report)
    if missing is None or not 0 < missing <= unused:
        return None
    return (
        f"trim() of other pools of {report.device}: they keep "
        f"{format_nbytes(unused)} that nobody uses"
    )


def _addresses(report: OutOfMemoryReport) -> str | None:
    """Look for a device that has the memory, and yet refused it."""
    unused = report.device_unused_nbytes
    if report.native is None or unused is None or unused < report.capacity_nbytes:
        return None
    says = f"the device says that {format_nbytes(unused)} are unused"
    kept = report.others.unused_nbytes
    trim = ""
    if kept:
        trim = f"trim() of other pools, which keep {format_nbytes(kept)} unused, or "
    if report.device.partition(":")[0] == "cpu":
        return (
            f"{says}, so something bounds this process: {trim}a higher `ulimit -v` or "
            "`ulimit -d`, or a larger cgroup"
        )
    return (
        f"{says}, but not in one piece, or not for this program: {trim}smaller blocks, "
        "or end other programs that use it"
    )


def _other_programs(report: OutOfMemoryReport) -> str | None:
    """Look for memory of the device that no pool of this process has."""
    missing = _missing_nbytes(report)
    if report.native is None or missing is None:
        return None
    return _theirs(report, missing)


def _theirs(report: OutOfMemoryReport, missing: int) -> str | None:
    """Say how much others have of the device, if that is as much as is missing."""
    total = report.device_total_nbytes
    if total is None:
        return None
    unused = report.device_unused_nbytes or 0
    ours = report.committed_nbytes + report.others.committed_nbytes
    theirs = total - unused - ours
    if theirs < missing:
        return None
    return (
        f"end other programs that use {report.device}: {format_nbytes(theirs)} of its "
        f"{format_nbytes(total)} are not in any pool of this process"
    )


def _limit(report: OutOfMemoryReport) -> str | None:
    """Say how far which limit would have to go, and whether the device has that."""
    if report.native is not None:
        return None
    limit, which = report.limit_nbytes, "limit"
    if report.is_over_device_limit:
        limit, which = report.device_limit_nbytes, "limit of the device"
    if limit is None:
        return None
    enough = report.enough_limit_nbytes
    unused = report.device_unused_nbytes
    if unused is not None and enough - limit > unused:
        others = _theirs(report, enough - limit - unused)
        return (
            f"free some memory; a higher {which} does not help while the device has "
            f"{format_nbytes(unused)} unused{f': first {others}' if others else ''}"
        )
    return f"free some memory, or a {which} of {format_at_least(enough)}"


def _all_ours(report: OutOfMemoryReport) -> str | None:
    """Say how much of the device the pools of this process have."""
    total = report.device_total_nbytes
    if report.native is None or total is None:
        return None
    ours = report.committed_nbytes + report.others.committed_nbytes
    return (
        f"free some memory: pools of this process have {format_nbytes(ours)} of the "
        f"{format_nbytes(total)} of {report.device}"
    )


def _missing_nbytes(report: OutOfMemoryReport) -> int | None:
    """Return the bytes that others would have to give up; None if unknown."""
    if report.native is None:
        if not report.is_over_device_limit or report.device_limit_nbytes is None:
            return None
        return report.enough_limit_nbytes - report.device_limit_nbytes
    unused = report.device_unused_nbytes
    return None if unused is None else report.capacity_nbytes - unused
