"""Commit the pages under a block: idle ones from elsewhere first, then new ones.

Recycling takes the highest idle pages, because what lies high is what the next
placements are least likely to want back. Runs of pages are half open: (first, stop).
"""

from collections.abc import Sequence
from typing import Protocol

from madl.pool.arena import Arena
from madl.pool.stream_order import StreamOrder

Bands = tuple[list[Arena], list[Arena]]
"""Arenas of small blocks, and of large ones."""

Run = tuple[int, int]


class Donor(Protocol):
    """The arenas of one stream, whose idle pages may be taken."""

    bands: Bands
    order: StreamOrder

    def has_idle(self) -> bool:
        """Return whether it has any."""

    def is_done(self) -> bool:
        """Return whether no queued work uses them. Does not wait."""


def back(
    arena: Arena,
    offset: int,
    nbytes: int,
    family: Sequence[Donor],
) -> int:
    """Commit every page under a range of an arena.

    Args:
        arena: Where the range lies.
        offset: Start of the range.
        nbytes: Its bytes.
        family: Whose idle pages may be taken once their streams are idle: only when
            pages are missing are these asked. Empty where nothing is recycled.

    Returns:
        How many pages were recycled.

    Raises:
        OutOfMemoryError: Over the limit, or the device refused; nothing changed.
        BackendCallError: It failed in another way; likewise.
    """
    pages = arena.blocks.pages
    missing = pages.missing(offset, nbytes)
    if missing == 0:
        return 0
    runs = pages.missing_runs(offset, nbytes)
    donors = _donors(family)
    recycled = min(missing, _idle_elsewhere(arena, offset, nbytes, donors))
    new = missing - recycled
    room_nbytes = arena.budget.room_nbytes if new else None
    if room_nbytes is not None and new * arena.page_nbytes > room_nbytes:
        raise arena.budget.refusal(arena.backend.device, nbytes)
    committed = _commit_new(arena, runs, new) if new else []
    if recycled:
        under = arena.pages_under(offset, nbytes)
        try:
            for run in runs:
                _recycle_into(arena, run, under, donors)
        except BaseException:
            _decommit(arena, committed)
            raise
    return recycled


def _donors(family: Sequence[Donor]) -> list[Arena]:
    """Return the arenas whose idle pages may be taken now, without waiting."""
    return [
        arena
        for one in family
        if not one.order.is_ordered or (one.has_idle() and one.is_done())
        for band in one.bands
        for arena in band
    ]


def _idle_elsewhere(
    arena: Arena, offset: int, nbytes: int, donors: Sequence[Arena]
) -> int:
    """Return how many pages of the donors are idle, without those under a range."""
    idle = sum(donor.blocks.pages.idle for donor in donors)
    if idle and arena in donors:
        idle -= arena.blocks.pages.idle_under(offset, nbytes)
    return idle


def _commit_new(arena: Arena, runs: list[Run], count: int) -> list[Run]:
    """Take ``count`` pages off the front of ``runs`` and commit them, or none."""
    done: list[Run] = []
    try:
        while count:
            first, stop = runs.pop(0)
            end = min(stop, first + count)
            arena.commit(first, end)
            done.append((first, end))
            count -= end - first
            if end < stop:
                runs.insert(0, (end, stop))
    except BaseException:
        _decommit(arena, done)
        raise
    return done


def _decommit(arena: Arena, runs: list[Run]) -> None:
    for first, stop in runs:
        arena.decommit(first, stop)


def _recycle_into(arena: Arena, run: Run, under: Run, donors: Sequence[Arena]) -> None:
    """Commit a run of pages with idle ones from elsewhere, the highest first."""
    page, end = run
    while page < end:
        donor, first, stop = _highest_idle(arena, end - page, under, donors)
        if donor.can_move:
            donor.move(first, stop, arena, page)
        else:
            _exchange(donor, first, stop, arena, page)
        page += stop - first


def _highest_idle(
    arena: Arena, most: int, under: Run, donors: Sequence[Arena]
) -> tuple[Arena, int, int]:
    """Return an idle run of at most ``most`` pages that does not overlap ``under``."""
    for donor in reversed(donors):
        keep = under if donor is arena else (0, 0)
        first, stop = donor.blocks.pages.last_idle_run(most, *keep)
        if first < stop:
            return donor, first, stop
    raise AssertionError("fewer idle pages than were counted")


def _exchange(donor: Arena, first: int, stop: int, arena: Arena, page: int) -> None:
    """Commit as many pages of ``arena`` as are taken from where memory cannot move."""
    donor.decommit(first, stop)
    try:
        arena.commit(page, page + stop - first)
    except BaseException:
        donor.commit(first, stop)
        raise
