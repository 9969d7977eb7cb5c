"""Dedicated allocations: blocks with a reservation each, within the limit.

For re-entrant calls, which find the pool's structures in the middle of a change, for
pools that do not pool, and for blocks that end at a guard page.
"""

from madl.backends.counted import CountedBackend
from madl.pool.arena import Arena
from madl.pool.limits import Budget
from madl.sizes import align_up


class Dedicated:
    """Arenas of one block each."""

    def __init__(
        self,
        backend: CountedBackend,
        budget: Budget,
        front_nbytes: int = 0,
    ) -> None:
        self.arenas: list[Arena] = []
        self._backend = backend
        self._budget = budget
        self._front_nbytes = front_nbytes

    def place(self, nbytes: int, alignment: int) -> tuple[Arena, int]:
        """Take a block in a reservation of its own; nothing else is touched.

        Args:
            nbytes: Bytes, a multiple of the backend's granularity.
            alignment: What the address is a multiple of; 0 for the backend's own.

        Raises:
            OutOfMemoryError: Over the limit, or the device refused. Nothing changed.
        """
        backend = self._backend
        promised = min(backend.alignment, self._front_nbytes or alignment)
        spare = align_up(max(alignment - promised, 0), backend.granularity)
        self._check_room(nbytes, nbytes)
        arena = self._open(nbytes + spare)
        try:
            offset = arena.align(0, alignment)
        except BaseException:
            self._keep(arena)
            self.release(arena)
            raise
        self._take(arena, offset, nbytes)
        return arena, offset

    def place_at_end(self, nbytes: int, alignment: int) -> tuple[Arena, int, int]:
        """Take a block that ends where nothing is committed, and begins near such.

        Args:
            nbytes: Of the block, its front included.
            alignment: Of what comes after the front; a power of two.

        Returns:
            Its arena, its offset, and the bytes up to its end, ``nbytes`` or more.

        Raises:
            OutOfMemoryError: As for ``place``.
        """
        granularity = self._backend.granularity
        committed_nbytes = align_up(nbytes + alignment, granularity)
        self._check_room(committed_nbytes, nbytes)
        arena = self._open(committed_nbytes + 2 * granularity)
        end = granularity + committed_nbytes
        # Down to a multiple: what is left behind the block is less than one.
        offset = arena.align(end - nbytes + 1, alignment) - alignment
        self._take(arena, offset, end - offset)
        return arena, offset, end - offset

    def _check_room(self, committed_nbytes: int, nbytes: int) -> None:
        room = self._budget.room_nbytes
        if room is not None and committed_nbytes > room:
            raise self._budget.refusal(self._backend.device, nbytes)

    def _open(self, nbytes: int) -> Arena:
        return Arena(
            self._backend,
            nbytes,
            self._budget,
            page_nbytes=self._backend.granularity,
            look_ahead=1,
            is_dedicated=True,
            front_nbytes=self._front_nbytes,
        )

    def _take(self, arena: Arena, offset: int, nbytes: int) -> None:
        """Commit a block of a new arena, and take it; or give the arena back."""
        try:
            if not arena.is_segment:
                arena.commit(*arena.pages_under(offset, nbytes))
        except BaseException:
            self._keep(arena)
            self.release(arena)
            raise
        arena.blocks.take(offset, nbytes)
        self._keep(arena)

    def _keep(self, arena: Arena) -> None:
        """Count an arena, once it has its block: other threads release empty ones."""
        self.arenas.append(arena)
        self._backend.claim(arena.reservation)

    def release(self, arena: Arena) -> None:
        """Give the reservation of a block back."""
        arena.release()
        self.arenas.remove(arena)  # after the call: what the device keeps is counted

    def release_empty(self) -> None:
        """Give back those whose release failed before."""
        for arena in [arena for arena in self.arenas if arena.blocks.is_empty()]:
            self.release(arena)
