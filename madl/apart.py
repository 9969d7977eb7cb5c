"""Blocks with a reservation of their own, outside all order and within the limit.

For calls that come in the middle of another one, when nothing else may be touched.
"""

from collections.abc import Callable

from madl.arena import Arena
from madl.backends.counted import CountedBackend
from madl.budget import Budget
from madl.errors import OutOfMemoryError
from madl.sizes import align_up


class Apart:
    """Arenas of one block each."""

    def __init__(
        self,
        backend: CountedBackend,
        budget: Budget,
        over_the_limit: Callable[[int], OutOfMemoryError],
    ) -> None:
        self.arenas: list[Arena] = []
        self._backend = backend
        self._budget = budget
        self._over_the_limit = over_the_limit

    def place(self, nbytes: int, alignment: int) -> tuple[Arena, int]:
        """Take a block in a reservation of its own; nothing else is touched.

        Args:
            nbytes: Bytes, a multiple of the backend's granularity.
            alignment: What the address is a multiple of; 0 for the backend's own.

        Raises:
            OutOfMemoryError: Over the limit, or the device refused. Nothing changed.
        """
        backend = self._backend
        spare = align_up(max(alignment - backend.alignment, 0), backend.granularity)
        room = self._budget.room_nbytes
        if room is not None and nbytes > room:
            raise self._over_the_limit(nbytes)
        arena = Arena(
            backend,
            nbytes + spare,
            self._budget,
            page_nbytes=backend.granularity,
            look_ahead=1,
            is_apart=True,
        )
        offset = arena.align(0, alignment)
        try:
            if not arena.is_segment:
                arena.commit(*arena.pages_under(offset, nbytes))
        except BaseException:
            self.arenas.append(arena)
            self.release(arena)
            raise
        arena.blocks.take(offset, nbytes)
        self.arenas.append(arena)  # last: what is empty may be released at any time
        backend.claim(arena.reservation)
        return arena, offset

    def release(self, arena: Arena) -> None:
        """Give the reservation of a block back."""
        arena.release()
        self.arenas.remove(arena)  # last: what the device keeps, the pool counts

    def release_empty(self) -> None:
        """Give back those that the device did not take back at once."""
        for arena in [arena for arena in self.arenas if arena.blocks.is_empty()]:
            self.release(arena)
