"""Commit the pages under a block: idle ones from elsewhere first, then new ones.

Recycling takes the highest idle pages, because what lies high is what the next
placements are least likely to want back.
"""

from collections.abc import Sequence

from madl.arena import Arena, PageRun


def back(
    arena: Arena,
    offset: int,
    nbytes: int,
    donors: Sequence[Arena],
    room_nbytes: int | None,
) -> int:
    """Commit every page under a range of an arena.

    Args:
        arena: Where the range lies.
        offset: Start of the range.
        nbytes: Its bytes.
        donors: Arenas whose idle pages may be taken, the last one first.
        room_nbytes: Bytes that may newly be committed; ``None`` for any.

    Returns:
        How many pages were recycled; -1, with nothing changed, if there is no room.

    Raises:
        OutOfMemoryError: The device refused; as much is committed as before.
        BackendCallError: It failed in another way; likewise.
    """
    pages = arena.blocks.pages
    missing = pages.missing(offset, nbytes)
    if missing == 0:
        return 0
    idle = sum(donor.blocks.pages.idle for donor in donors)
    if donors:
        idle -= pages.idle_under(offset, nbytes)
    recycled = min(missing, idle)
    new = missing - recycled
    if room_nbytes is not None and new * arena.page_nbytes > room_nbytes:
        return -1
    under = PageRun.under(arena, offset, nbytes)
    runs = [
        PageRun(arena, first, stop)
        for first, stop in pages.missing_runs(offset, nbytes)
    ]
    committed = _commit_new(runs, new)
    try:
        for run in runs:
            _recycle_into(run, under, donors)
    except BaseException:
        _decommit(committed)
        raise
    return recycled


def _commit_new(runs: list[PageRun], count: int) -> list[PageRun]:
    """Take ``count`` pages off the front of ``runs`` and commit them, or none."""
    done: list[PageRun] = []
    try:
        while count:
            arena, first, stop = runs.pop(0)
            end = min(stop, first + count)
            arena.commit(first, end)
            done.append(PageRun(arena, first, end))
            count -= end - first
            if end < stop:
                runs.insert(0, PageRun(arena, end, stop))
    except BaseException:
        _decommit(done)
        raise
    return done


def _decommit(runs: list[PageRun]) -> None:
    for run in runs:
        run.arena.decommit(run.first, run.stop)


def _recycle_into(run: PageRun, under: PageRun, donors: Sequence[Arena]) -> None:
    """Commit a run of pages with idle ones from elsewhere, the highest first."""
    page = run.first
    while page < run.stop:
        source = _highest_idle(run.stop - page, under, donors)
        if source.arena.can_move:
            source.arena.move(source.first, source.stop, run.arena, page)
        else:
            _exchange(source, run.arena, page)
        page += source.page_count


def _highest_idle(most: int, under: PageRun, donors: Sequence[Arena]) -> PageRun:
    """Return an idle run of at most ``most`` pages that does not overlap ``under``."""
    for donor in reversed(donors):
        below = donor.blocks.pages.count
        while True:
            first, stop = donor.blocks.pages.last_idle_run(below, most)
            if first == stop:
                break
            if donor is not under.arena or first >= under.stop or stop <= under.first:
                return PageRun(donor, first, stop)
            if stop > under.stop:
                return PageRun(donor, under.stop, stop)
            below = under.first
    raise AssertionError("fewer idle pages than were counted")


def _exchange(source: PageRun, arena: Arena, page: int) -> None:
    """Commit as many pages of ``arena`` as are taken from where memory cannot move."""
    source.arena.decommit(source.first, source.stop)
    try:
        arena.commit(page, page + source.page_count)
    except BaseException:
        source.arena.commit(source.first, source.stop)
        raise
