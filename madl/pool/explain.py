"""Why a request could not be placed: the figures of its pool, device and neighbours."""

from collections import Counter
from collections.abc import Callable

from madl.backends.protocol import Capability
from madl.errors import MadlError, OutOfMemoryError, OutOfMemoryReport
from madl.errors.report import (
    NO_LINE,
    NO_TAG,
    OTHERS,
    Group,
    Holder,
    OtherPools,
    Request,
)
from madl.hotpath import BlockState
from madl.pool import accounting
from madl.pool.growth import Growth
from madl.pool.options import least_limit_nbytes
from madl.pool.parts import Parts, all_pools

MOST_HOLDERS = 20
"""Tags, and lines, that a report lists; what the rest holds is one more entry."""

FEWEST_ALLOCATIONS = 64
"""After fewer a pool is still being filled, and nothing looks like a leak."""


def explain(
    request: Request, parts: Parts, inside: OutOfMemoryReport | None
) -> OutOfMemoryError:
    """Return the error for a request; no lock is held.

    Args:
        request: What failed.
        parts: The pool's.
        inside: What ``look_inside`` found; None in a re-entrant call, which must not
            look at structures in the middle of a change.
    """
    device, options = parts.backend.device, parts.options
    report = inside or OutOfMemoryReport(device, request.nbytes, is_inside_unknown=True)
    total, unused = _memory_info(parts.growth)
    return OutOfMemoryError(
        report._replace(
            requested_nbytes=request.nbytes,
            capacity_nbytes=request.capacity,
            limit_nbytes=options.limit_nbytes,
            least_limit_nbytes=least_limit_nbytes(parts.backend, request.capacity),
            needed_nbytes=options.growth_nbytes(parts.backend, request.capacity),
            tried=request.tried,
            native=request.native,
            tag_limit=request.tag_limit,
            device_total_nbytes=total,
            device_unused_nbytes=unused,
            device_limit_nbytes=parts.budget.device.limit_nbytes,
            others=_others(parts),
        )
    )


def look_inside(parts: Parts, capacity: int) -> OutOfMemoryReport:
    """Return a report with all that only the pool knows; its lock is held.

    Everything is from one look at the blocks, so that the sums add up whatever other
    threads free in that time.
    """
    growth, shared = parts.growth, parts.shared
    arenas = growth.arenas  # before the blocks, as in accounting.check
    states = parts.streams.states()
    live = [state for state in states if state.is_live]
    nbytes = sum(state.nbytes for state in live)
    padding = sum(state.capacity - state.nbytes for state in live)
    committed = growth.budget.committed_nbytes
    pieces = [
        piece for arena in arenas for piece in accounting.free_pieces(arena, live)
    ]
    has_lines = any(state.stack for state in live)
    return OutOfMemoryReport(
        parts.backend.device,
        0,
        committed_nbytes=committed,
        live_nbytes=nbytes,
        padding_nbytes=padding,
        cached_nbytes=sum(state.capacity for state in states if not state.is_live),
        free_nbytes=committed - nbytes - padding,
        largest_free_nbytes=max((size for _, size in pieces), default=0),
        live_count=len(live),
        allocation_count=shared.allocation_count,
        free_count=shared.allocation_count - len(live),
        is_growing=_is_growing(parts, len(live)),
        page_nbytes=growth.options.page_nbytes,
        enough_page_nbytes=_enough_page_nbytes(growth, pieces, capacity),
        tags=_bounded(_held_by(live, _tag_of)),
        lines=_bounded(_held_by(live, _line_of)) if has_lines else (),
        largest_group=_largest_group(live),
    )


def _largest_group(live: list[BlockState]) -> Group | None:
    counts = Counter(
        (state.tag, _line_of(state) if state.stack else None, state.nbytes)
        for state in live
    )
    if not counts:
        return None
    (tag, line, nbytes), count = max(
        counts.items(), key=lambda item: item[0][2] * item[1]
    )
    return Group(tag, line, nbytes, count)


def _tag_of(state: BlockState) -> str:
    return NO_TAG if state.tag is None else state.tag


def _line_of(state: BlockState) -> str:
    return str(state.stack[0]) if state.stack else NO_LINE


def _held_by(
    live: list[BlockState], name_of: Callable[[BlockState], str]
) -> list[Holder]:
    """Return what is held under each name, the most bytes first."""
    held: dict[str, tuple[int, int, int]] = {}
    for state in live:
        name = name_of(state)
        nbytes, padding, count = held.get(name, (0, 0, 0))
        held[name] = (
            nbytes + state.nbytes,
            padding + state.capacity - state.nbytes,
            count + 1,
        )
    holders = [Holder(name, *figures) for name, figures in held.items()]
    return sorted(holders, key=lambda holder: (-holder.nbytes, holder.name))


def _bounded(holders: list[Holder]) -> tuple[Holder, ...]:
    """Return the largest holders, and one that stands for the rest."""
    if len(holders) <= MOST_HOLDERS:
        return tuple(holders)
    rest = holders[MOST_HOLDERS:]
    others = Holder(
        OTHERS,
        sum(holder.nbytes for holder in rest),
        sum(holder.padding_nbytes for holder in rest),
        sum(holder.block_count for holder in rest),
    )
    return (*holders[:MOST_HOLDERS], others)


def _is_growing(parts: Parts, live_count: int) -> bool:
    """Return whether a program that frees most of what it allocates grows all along."""
    count = parts.shared.allocation_count
    is_busy = count >= FEWEST_ALLOCATIONS and 2 * live_count <= count
    return is_busy and parts.budget.grows_until(count)


def _enough_page_nbytes(
    growth: Growth, pieces: list[tuple[int, int]], capacity: int
) -> int | None:
    """Return the largest smaller page of which enough would be wholly free."""
    if Capability.COMMIT not in growth.backend.capabilities:
        return None
    page_nbytes = growth.options.page_nbytes // 2
    while page_nbytes and page_nbytes % growth.backend.granularity == 0:
        whole = sum(
            max((start + nbytes) // page_nbytes - -(-start // page_nbytes), 0)
            for start, nbytes in pieces
        )
        if whole >= -(-capacity // page_nbytes):
            return page_nbytes
        page_nbytes //= 2
    return None


def _memory_info(growth: Growth) -> tuple[int | None, int | None]:
    """Return the device's memory, and how much of it is unused; None if it fails.

    What is wrong with the device must not hide why the request failed.
    """
    try:
        info = growth.backend.backend.memory_info()
    except MadlError:
        return None, None
    unused = info.available_nbytes
    if Capability.HOST_ACCESS not in growth.backend.capabilities:
        # OpenCL does not say what others have, but other pools are known. (On the host
        # what is committed takes nothing before it is touched.)
        taken = growth.budget.device.committed_nbytes
        unused = max(min(unused, info.total_nbytes - taken), 0)
    return info.total_nbytes, unused


def _others(parts: Parts) -> OtherPools:
    """Return what the other pools of the device have, without asking for a lock."""
    device = parts.budget.device
    others = [
        other
        for _, other in all_pools()
        if other is not parts and other.budget.device is device
    ]
    # Not what the device has less our own: a commit may be under way.
    return OtherPools(
        sum(other.budget.committed_nbytes for other in others),
        sum(other.shared.live_nbytes for other in others),
    )
