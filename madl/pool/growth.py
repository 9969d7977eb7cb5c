"""Where a pool finds memory for a block that no committed place can hold.

Idle pages first: what lies unused in a hole is committed where it is needed. Then new
pages, up to the limit. Then another reservation. Without ``Capability.COMMIT`` every
reservation is a segment; a miss then releases the empty segments and takes one of
their bytes, so that segments become fewer and larger.
"""

import sys
from itertools import chain

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability
from madl.errors import OutOfMemoryError
from madl.hotpath import BLOCK_GRANULARITY
from madl.pool import paging
from madl.pool.arena import Arena
from madl.pool.dedicated import Dedicated
from madl.pool.limits import Budget, device_budget
from madl.pool.options import SMALL_NBYTES, PoolOptions
from madl.pool.paging import Bands
from madl.pool.stream_order import StreamOrder
from madl.sizes import align_up

RESERVED_PER_MEMORY = 4
"""How much address space is reserved, as a multiple of the device's memory."""


class Growth:
    """A pool's arenas, and the steps by which what they have committed changes.

    Small and large blocks have arenas of their own, called bands: a small block that
    outlives its neighbours must not break up the room for a large one. All bands draw
    on one budget of pages. Not thread-safe; the pool's lock is held. Before every
    backend call all structures are consistent, since it may let other threads run.
    """

    def __init__(
        self,
        backend: CountedBackend,
        bands: Bands,
        options: PoolOptions,
    ) -> None:
        self.backend = backend
        self.bands = bands  # of small blocks, and of large ones; shared with the pool
        self.options = options
        self.budget = Budget(
            options.limit_nbytes, options.soft_limit_nbytes, device_budget(backend)
        )
        front_nbytes = options.debug.front_nbytes
        self.dedicated = Dedicated(backend, self.budget, front_nbytes)
        self.recycled_pages = 0
        self.small_nbytes = SMALL_NBYTES if options.has_bands else sys.maxsize
        # One for each stream, this one included; they share budget and dedicated ones.
        self.family = [self]
        self.order = StreamOrder.of(backend, None)

    def branch(self, bands: Bands, stream: object) -> "Growth":
        """Return what finds memory for the blocks of another stream."""
        growth = Growth(self.backend, bands, self.options)
        growth.dedicated, growth.budget = self.dedicated, self.budget
        growth.family = self.family
        growth.order = StreamOrder.of(self.backend, stream)
        self.family.append(growth)
        return growth

    def absorb(self, other: "Growth") -> None:
        """Take over the arenas of a stream that is used no more."""
        assert other is not self, "a stream has nothing to take from itself"
        self.order.follow(other.order)  # before any change: it may fail
        for mine, theirs in zip(self.bands, other.bands, strict=True):
            mine += theirs
            theirs.clear()
        self.recycled_pages += other.recycled_pages
        self.family.remove(other)

    @property
    def own_arenas(self) -> list[Arena]:
        """Arenas of this stream's blocks, those of small ones first."""
        return [*self.bands[0], *self.bands[1]]

    @property
    def arenas(self) -> list[Arena]:
        """Arenas that blocks of any stream are placed in."""
        return [arena for growth in self.family for arena in growth.own_arenas]

    def all_arenas(self) -> list[Arena]:
        """Return the arenas that blocks are placed in, then those of one block."""
        return [*self.arenas, *self.dedicated.arenas]

    def place(self, nbytes: int, alignment: int) -> tuple[Arena, int]:
        """Take a block of ``nbytes`` bytes; find pages for it first.

        Returns:
            Its arena and offset.

        Raises:
            OutOfMemoryError: Over the limit, or the device refused; in the latter
                case the report has its native failure. Nothing has changed.
        """
        band = 1 if nbytes > self.small_nbytes else 0
        try:
            arena, offset = self._place_first(band, nbytes, alignment)
        except OutOfMemoryError:
            found = self._place_where_pages_are(band, nbytes, alignment)
            if found is None:
                raise
            arena, offset = found
            if not self.is_own(arena):
                # It waits, on the device, for what the owner has queued.
                self.order.follow(self.order_of(arena))
        arena.blocks.take(offset, nbytes)
        return arena, offset

    def _place_first(self, band: int, nbytes: int, alignment: int) -> tuple[Arena, int]:
        """Return the first place in a band, with its pages committed."""
        family = self.family if self.options.recycle else ()
        for arena in self.bands[band]:
            offset = arena.find(nbytes, alignment)
            if offset >= 0:
                self.recycled_pages += paging.back(arena, offset, nbytes, family)
                return arena, offset
        promised = min(self.backend.alignment, BLOCK_GRANULARITY)
        arena = self._reserve(band, nbytes + max(alignment - promised, 0))
        try:
            offset = arena.find(nbytes, alignment)
            self.recycled_pages += paging.back(arena, offset, nbytes, family)
        except BaseException:
            self._close(arena)
            raise
        return arena, offset

    def _place_where_pages_are(
        self, band: int, nbytes: int, alignment: int
    ) -> tuple[Arena, int] | None:
        """Return the lowest place that needs no page, of either band. O(n).

        For a pool at its limit, or on a device that is full: the first place that is
        large enough may lie where pages were taken away, and one further up not.
        """
        others = [growth.own_arenas for growth in self.family if growth is not self]
        for arena in chain(self.bands[band], self.bands[1 - band], *others):
            if arena.blocks.pages.committed * arena.page_nbytes >= nbytes:
                offset = arena.find_committed(nbytes, alignment)
                if offset >= 0:
                    return arena, offset
        return None

    def settle(self) -> None:
        """Wait until the device has done all work that is queued in any stream."""
        for growth in self.family:
            growth.order.wait(growth.vacated())

    def vacated(self) -> object:
        """Return what changes whenever pages of this stream become idle."""
        return [(one, one.blocks.pages.vacated) for one in self.own_arenas]

    def has_idle(self) -> bool:
        """Return whether pages lie idle, whether or not queued work uses them."""
        return any(arena.blocks.pages.idle for arena in self.own_arenas)

    def is_done(self) -> bool:
        """Return whether no queued work uses what this stream has free."""
        return not self.order.is_ordered or self.order.is_done(self.vacated())

    def refuse_in_capture(self) -> None:
        """Raise while a graph is captured from any stream: a wait could break it."""
        for growth in self.family:
            growth.order.refuse_in_capture("wait for queued work")

    def wait_for_free(self) -> None:
        """Wait until that is so."""
        self.order.wait_for_free(self.vacated())

    def let_go(self) -> None:
        """Wait, where memory is unmapped from the host, until no work can use it."""
        if Capability.COMMIT in self.backend.capabilities:
            self.settle()

    def is_own(self, arena: Arena) -> bool:
        """Return whether an arena's blocks are of this stream."""
        return arena in self.bands[0] or arena in self.bands[1]

    def order_of(self, arena: Arena) -> StreamOrder:
        """Return that of the stream whose arena it is; this one's if dedicated."""
        for growth in self.family:
            if growth.is_own(arena):
                return growth.order
        return self.order

    def _reserve(self, band: int, at_least: int) -> Arena:
        """Add an arena of at least the given bytes to a band."""
        if Capability.COMMIT in self.backend.capabilities:
            arena = self._reserve_addresses(band, at_least)
        else:
            arena = self._reserve_segment(band, at_least)
        self.bands[band].append(arena)
        self.backend.claim(arena.reservation)
        return arena

    def _reserve_addresses(self, band: int, at_least: int) -> Arena:
        """Reserve several times the device's memory, halved while that is refused."""
        page_nbytes = self.options.page_nbytes
        smallest = align_up(at_least, page_nbytes)
        total = self.backend.backend.memory_info().total_nbytes * RESERVED_PER_MEMORY
        first = nbytes = max(align_up(total, page_nbytes), smallest)
        while True:
            try:
                arena = self._open(band, nbytes)
            except OutOfMemoryError:
                if nbytes == smallest:
                    raise
                nbytes = max(align_up(nbytes // 2, page_nbytes), smallest)
                continue
            if nbytes in (first, smallest):
                return arena
            self._close(arena)
            # Half of what was granted: the rest of the process needs addresses too.
            first = nbytes = max(align_up(nbytes // 2, page_nbytes), smallest)

    def _reserve_segment(self, band: int, at_least: int) -> Arena:
        """Take one segment for the request in place of all that are empty."""
        unit = self.options.segment_unit_nbytes(self.backend)
        smallest = align_up(at_least, unit)
        released = self._release_empty_segments()
        room = self.budget.room_nbytes
        if room is not None and smallest > room:
            raise self.budget.refusal(self.backend.device, at_least)
        wanted = max(smallest, released)
        if room is not None:
            wanted = min(wanted, max(smallest, room // unit * unit))
        try:
            return self._open(band, wanted)
        except OutOfMemoryError:
            if wanted == smallest:
                raise
            return self._open(band, smallest)

    def _release_empty_segments(self) -> int:
        """Give back those of this stream, and of others whose work is done."""
        released = 0
        for growth in self.family:
            empty = [arena for arena in growth.own_arenas if arena.blocks.is_empty()]
            if empty and (growth is self or growth.is_done()):
                for arena in empty:
                    self._close(arena)
                    released += arena.nbytes
        return released

    def _open(self, band: int, nbytes: int) -> Arena:
        return Arena(
            self.backend,
            nbytes,
            self.budget,
            page_nbytes=self.options.page_nbytes,
            look_ahead=self.options.look_ahead_of(band),
            front_nbytes=self.options.debug.front_nbytes,
        )

    def trim(self, keep: int) -> None:
        """Give memory back until at most ``keep`` bytes are committed.

        Idle pages go, the highest first; arenas without a live block go whole. The
        device has done its work in them by now: see ``let_go``.
        """
        self.dedicated.release_empty()
        for arena in reversed(self.arenas):
            if arena.is_segment:
                if arena.blocks.is_empty() and self.budget.committed_nbytes > keep:
                    self._close(arena)
                continue
            self._decommit_idle(arena, keep)
            if arena.blocks.is_empty() and arena.committed_nbytes == 0:
                self._close(arena)

    def _decommit_idle(self, arena: Arena, keep: int) -> None:
        while self.budget.committed_nbytes > keep:
            over = -(-(self.budget.committed_nbytes - keep) // arena.page_nbytes)
            first, stop = arena.blocks.pages.last_idle_run(over)
            if first == stop:
                return
            arena.decommit(first, stop)

    def _close(self, arena: Arena) -> None:
        try:
            arena.release()
        except BaseException:
            if arena not in self.arenas:  # a trim tries again
                self.dedicated.arenas.append(arena)
            raise
        self.forget(arena)

    def forget(self, arena: Arena) -> None:
        """Keep an arena no longer that has been released."""
        for arenas in chain(
            [self.dedicated.arenas], *(one.bands for one in self.family)
        ):
            if arena in arenas:
                arenas.remove(arena)

    def stop_placing(self, seen: Bands) -> None:
        """Hide the arenas from the pool; they stay here until they are empty."""
        if self.bands is seen:  # else it was interrupted after that
            self.bands = ([*seen[0]], [*seen[1]])
        for band in seen:
            band.clear()
