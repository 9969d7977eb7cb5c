"""Where a pool finds memory for a block that no committed place can hold.

Idle pages first: what lies unused in a hole is committed where it is needed. Then new
pages, up to the limit. Then another reservation. Without ``Capability.COMMIT`` every
reservation is a segment; a miss then releases the empty segments and takes one of
their bytes, so that segments become fewer and larger.
"""

from madl.arena import Arena, PageRun
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability
from madl.errors import OutOfMemoryError, OutOfMemoryReport
from madl.hotpath import BLOCK_GRANULARITY
from madl.options import PoolOptions
from madl.sizes import align_up

SEGMENT_NBYTES = 2 << 20
"""Segments are multiples of it, and of the backend's granularity."""

RESERVED_PER_MEMORY = 4
"""How much address space is reserved, as a multiple of the device's memory."""


class Growth:
    """A pool's arenas, and the steps by which what they have committed changes.

    Not thread-safe; the pool's lock is held. Before every backend call all structures
    are consistent, because the call may let other threads run.
    """

    def __init__(
        self, backend: CountedBackend, arenas: list[Arena], options: PoolOptions
    ) -> None:
        self.backend = backend
        self.arenas = arenas
        self.apart: list[Arena] = []  # arenas of one block each, within the same limit
        self.page_nbytes = options.page_nbytes
        self.limit_nbytes = options.limit_nbytes
        self.recycle = options.recycle
        self.best_fit = options.fit == "best"
        self.committed_high_water = 0
        self.recycled_pages = 0

    @property
    def committed_nbytes(self) -> int:
        """Bytes taken from the device."""
        return sum(arena.committed_nbytes for arena in self.all_arenas())

    @property
    def reserved_nbytes(self) -> int:
        """Bytes of address space taken."""
        return sum(arena.nbytes for arena in self.all_arenas())

    def all_arenas(self) -> list[Arena]:
        """Return the arenas that blocks are placed in, then those of one block."""
        return [*self.arenas, *self.apart]

    @property
    def room_nbytes(self) -> int | None:
        """Bytes that may still be committed; ``None`` without a limit."""
        if self.limit_nbytes is None:
            return None
        return self.limit_nbytes - self.committed_nbytes

    def place(self, nbytes: int, alignment: int) -> tuple[Arena, int]:
        """Take a block of ``nbytes`` bytes; find pages for it first.

        Returns:
            Its arena and offset.

        Raises:
            OutOfMemoryError: Over the limit, or the device refused; in the latter
                case the report has its native failure. Nothing has changed.
        """
        for arena in self.arenas:
            offset = arena.blocks.find(nbytes, alignment)
            if offset >= 0 and self._back(arena, offset, nbytes):
                return self._take(arena, offset, nbytes)
        arena = self._reserve(nbytes + max(alignment - BLOCK_GRANULARITY, 0))
        try:
            offset = arena.blocks.find(nbytes, alignment)
            if not self._back(arena, offset, nbytes):
                raise self._over_the_limit(nbytes)
        except OutOfMemoryError:
            self.arenas.remove(arena)
            arena.release()
            raise
        return self._take(arena, offset, nbytes)

    def _take(self, arena: Arena, offset: int, nbytes: int) -> tuple[Arena, int]:
        arena.blocks.take(offset, nbytes)
        self.note_committed()
        return arena, offset

    def note_committed(self) -> None:
        """Update the high-water mark of committed bytes."""
        self.committed_high_water = max(
            self.committed_high_water, self.committed_nbytes
        )

    def _over_the_limit(self, nbytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            OutOfMemoryReport(
                self.backend.device, nbytes, limit_nbytes=self.limit_nbytes
            )
        )

    def _back(self, arena: Arena, offset: int, nbytes: int) -> bool:
        """Commit the pages under a range; return False when over the limit."""
        pages = arena.blocks.pages
        missing = pages.missing(offset, nbytes)
        if missing == 0:
            return True
        spare = 0
        if self.recycle:
            idle = sum(other.blocks.pages.idle for other in self.arenas)
            spare = min(missing, idle - pages.idle_under(offset, nbytes))
        new = missing - spare
        room = self.room_nbytes
        if room is not None and new * arena.page_nbytes > room:
            return False
        runs = [
            PageRun(arena, first, stop)
            for first, stop in pages.missing_runs(offset, nbytes)
        ]
        committed = self._commit_new(runs, new)
        try:
            self._recycle_into(runs, offset, nbytes)
        except OutOfMemoryError:
            _decommit(committed)
            raise
        return True

    def _commit_new(self, runs: list[PageRun], count: int) -> list[PageRun]:
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
        except OutOfMemoryError:
            _decommit(done)
            raise
        return done

    def _recycle_into(self, runs: list[PageRun], offset: int, nbytes: int) -> None:
        """Commit all of ``runs`` with idle pages from elsewhere, the highest first."""
        for arena, first, stop in runs:
            page = first
            while page < stop:
                source = self._highest_idle(stop - page, arena, offset, nbytes)
                if source.arena is arena:
                    arena.move(source.first, source.stop, page)
                else:
                    _exchange(source, arena, page)
                self.recycled_pages += source.page_count
                page += source.page_count

    def _highest_idle(
        self, most: int, keep: Arena, offset: int, nbytes: int
    ) -> PageRun:
        """Return an idle run that does not lie under a range of ``keep``."""
        for arena in reversed(self.arenas):
            below = arena.blocks.pages.count
            while True:
                first, stop = arena.blocks.pages.last_idle_run(below, most)
                if first == stop:
                    break
                if arena is not keep:
                    return PageRun(arena, first, stop)
                kept_first = offset // keep.page_nbytes
                kept_stop = (offset + nbytes - 1) // keep.page_nbytes + 1
                if first >= kept_stop or stop <= kept_first:
                    return PageRun(arena, first, stop)
                if stop > kept_stop:
                    return PageRun(arena, kept_stop, stop)
                below = kept_first
        raise AssertionError("fewer idle pages than were counted")

    def _reserve(self, at_least: int) -> Arena:
        """Add an arena of at least the given bytes."""
        if Capability.COMMIT in self.backend.capabilities:
            arena = self._reserve_addresses(at_least)
        else:
            arena = self._reserve_segment(at_least)
        self.arenas.append(arena)
        return arena

    def _reserve_addresses(self, at_least: int) -> Arena:
        """Reserve several times the device's memory, halved while that is refused."""
        smallest = align_up(at_least, self.page_nbytes)
        total = self.backend.memory_info().total_nbytes * RESERVED_PER_MEMORY
        nbytes = max(align_up(total, self.page_nbytes), smallest)
        while True:
            try:
                return self._open(nbytes)
            except OutOfMemoryError:
                if nbytes == smallest:
                    raise
                nbytes = max(align_up(nbytes // 2, self.page_nbytes), smallest)

    def _reserve_segment(self, at_least: int) -> Arena:
        """Take one segment for the request in place of all that are empty."""
        unit = max(SEGMENT_NBYTES, self.backend.granularity)
        if self.limit_nbytes is not None and self.limit_nbytes < 2 * unit:
            unit = self.backend.granularity  # small limits are met to the granule
        smallest = align_up(at_least, unit)
        released = 0
        for arena in [arena for arena in self.arenas if arena.blocks.is_empty()]:
            self.arenas.remove(arena)
            arena.release()
            released += arena.nbytes
        room = self.room_nbytes
        if room is not None and smallest > room:
            raise self._over_the_limit(at_least)
        wanted = max(smallest, released)
        if room is not None:
            wanted = min(wanted, max(smallest, room // unit * unit))
        try:
            return self._open(wanted)
        except OutOfMemoryError:
            if wanted == smallest:
                raise
            return self._open(smallest)

    def _open(self, nbytes: int) -> Arena:
        return Arena(
            self.backend, nbytes, page_nbytes=self.page_nbytes, best_fit=self.best_fit
        )

    def place_apart(self, nbytes: int) -> Arena:
        """Take a block in a reservation of its own; nothing else is touched.

        Raises:
            OutOfMemoryError: As for ``place``.
        """
        granularity = self.backend.granularity
        whole = align_up(nbytes, granularity)
        room = self.room_nbytes
        if room is not None and whole > room:
            raise self._over_the_limit(nbytes)
        arena = Arena(
            self.backend,
            whole,
            page_nbytes=granularity,
            best_fit=False,
            is_apart=True,
        )
        try:
            if not arena.is_segment:
                arena.commit(0, arena.blocks.pages.count)
        except OutOfMemoryError:
            arena.release()
            raise
        arena.blocks.take(0, whole)
        self.apart.append(arena)
        self.note_committed()
        return arena

    def release_apart(self, arena: Arena) -> None:
        """Give the reservation of a block placed apart back."""
        self.apart.remove(arena)
        arena.release()

    def trim(self, keep: int) -> int:
        """Give memory back until at most ``keep`` bytes are committed.

        Idle pages go, the highest first; arenas without a live block go whole.

        Returns:
            Bytes given back to the device.
        """
        before = self.committed_nbytes
        for arena in reversed(list(self.arenas)):
            if arena.is_segment:
                if arena.blocks.is_empty() and self.committed_nbytes > keep:
                    self._close(arena)
                continue
            self._decommit_idle(arena, keep)
            if arena.blocks.is_empty() and arena.committed_nbytes == 0:
                self._close(arena)
        return before - self.committed_nbytes

    def _decommit_idle(self, arena: Arena, keep: int) -> None:
        while self.committed_nbytes > keep:
            over = -(-(self.committed_nbytes - keep) // arena.page_nbytes)
            pages = arena.blocks.pages
            first, stop = pages.last_idle_run(pages.count, over)
            if first == stop:
                return
            arena.decommit(first, stop)

    def _close(self, arena: Arena) -> None:
        self.arenas.remove(arena)
        arena.release()

    def release_all(self) -> None:
        """Give every reservation back; nobody uses any of it."""
        for arena in self.all_arenas():
            arena.release()


def _decommit(runs: list[PageRun]) -> None:
    for run in runs:
        run.arena.decommit(run.first, run.stop)


def _exchange(source: PageRun, arena: Arena, page: int) -> None:
    """Commit as many pages of ``arena`` as are taken from another arena's run."""
    source.arena.decommit(source.first, source.stop)
    try:
        arena.commit(page, page + source.page_count)
    except OutOfMemoryError:
        source.arena.commit(source.first, source.stop)
        raise
