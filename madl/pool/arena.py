"""One reservation of a device, its blocks, and the pages that are committed in it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, Reservation
from madl.core.first_fit import FirstFit
from madl.errors import (
    MadlError,
    MissingCapabilityError,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.hotpath import BLOCK_GRANULARITY, HotArena
from madl.hotpath.reentrancy import counting
from madl.pool.limits import Budget
from madl.sizes import align_up

_Taken = TypeVar("_Taken")


class Arena(HotArena):
    """A reservation that a pool places blocks in.

    Without ``Capability.COMMIT`` the reservation is one page, committed from the
    start: the whole arena is one segment. Not thread-safe; the pool's lock is held.
    """

    def __init__(
        self,
        backend: CountedBackend,
        nbytes: int,
        budget: Budget,
        *,
        page_nbytes: int,
        look_ahead: int,
        is_dedicated: bool = False,
        front_nbytes: int = 0,
    ) -> None:
        self.backend = backend
        self.budget = budget
        # Each block begins with so many bytes that its user does not see; address and
        # alignment are those of what comes after them.
        self.front_nbytes = front_nbytes
        self.is_segment = Capability.COMMIT not in backend.capabilities
        self.page_nbytes = nbytes if self.is_segment else page_nbytes
        if self.is_segment:
            self.reservation: Reservation = self._claimed(
                nbytes, partial(backend.reserve, nbytes)
            )
        else:
            self.reservation = backend.reserve(nbytes)
        start = self.reservation.address
        base = self.reservation.base if start is None else start
        try:
            if (base or 0) % BLOCK_GRANULARITY:
                raise MissingCapabilityError(
                    backend.device,
                    f"reservations aligned to {BLOCK_GRANULARITY} bytes",
                    "a backend that aligns them itself",
                )
            # After the device has granted so much: its index takes memory as well.
            blocks = FirstFit(nbytes, self.page_nbytes, look_ahead)
        except (MemoryError, MissingCapabilityError):
            backend.release(self.reservation)
            if self.is_segment:
                budget.give_back(nbytes)
            raise
        # Runs of pages in whose change a call was interrupted: their state is unknown.
        self._doubtful: list[tuple[int, int]] = []
        self.is_leaving = False
        self.can_move = Capability.REMAP in backend.capabilities
        self.unused_from = 0
        """No block lay at or above this offset, and no memory was moved there, so what
        the system gives there is zero. Kept for ``zeroing``."""
        # Where alignment counts from; None where the device does not tell.
        self._base = None if base is None else base + front_nbytes
        super().__init__(
            blocks,
            None if start is None else start + front_nbytes,
            is_dedicated=is_dedicated,
        )
        if self.is_segment:
            self.blocks.pages.commit(0, 1)
            budget.commit(nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.blocks.nbytes

    @property
    def committed_nbytes(self) -> int:
        """Bytes taken from the device."""
        return self.blocks.pages.committed * self.page_nbytes

    def find(self, nbytes: int, alignment: int) -> int:
        """Return the first offset for a block whose address is aligned, or -1."""
        promised = min(self.backend.alignment, self.front_nbytes or alignment)
        if alignment <= promised:
            return self.blocks.find(nbytes, alignment)
        # The arena's own start is aligned no further: find room to move up in.
        offset = self.blocks.find(nbytes + alignment - promised, promised)
        return offset if offset < 0 else self.align(offset, alignment)

    def find_committed(self, nbytes: int, alignment: int) -> int:
        """Return the lowest offset for a block that needs no page, or -1. O(n + pages).

        Of a free block some pages may be committed, and others not.
        """
        pages = self.blocks.pages
        for start, free_nbytes in self.blocks.index.blocks():
            stop = min(start + free_nbytes, pages.top * self.page_nbytes)
            offset = self.align(start, alignment) if alignment else start
            if offset + nbytes > stop:
                continue
            for first, after in pages.missing_runs(offset, stop - offset):
                if offset + nbytes <= first * self.page_nbytes:
                    return offset
                offset = self.align(after * self.page_nbytes, alignment)
            if offset + nbytes <= stop:
                return offset
        return -1

    def pages_under(self, offset: int, nbytes: int) -> tuple[int, int]:
        """Return the pages ``[first, stop)`` that a range of bytes lies on."""
        last = (offset + nbytes - 1) // self.page_nbytes
        return offset // self.page_nbytes, last + 1

    def align(self, offset: int, alignment: int) -> int:
        """Return the next offset whose address is a multiple of it; 0 for any."""
        if self._base is not None:
            return align_up(self._base + offset, alignment or 1) - self._base
        if alignment <= max(self.backend.alignment, BLOCK_GRANULARITY):
            return align_up(offset, alignment or 1)
        raise MissingCapabilityError(
            self.backend.device,
            f"alignment of {alignment} bytes: it does not tell where memory starts",
            "leave out alignment=",
        )

    def commit(self, first: int, stop: int) -> None:
        """Commit pages; on failure nothing has changed."""
        self._change(self._commit, first, stop)

    def decommit(self, first: int, stop: int) -> None:
        """Give the memory of idle pages back to the device."""
        self._change(self._decommit, first, stop)

    def move(self, first: int, stop: int, into: "Arena", destination: int) -> None:
        """Take the memory of idle pages and commit it at a page of another arena.

        It may be this arena too.
        """
        take = partial(self._move, into=into, destination=destination)
        there = destination, destination + stop - first
        into._change(lambda *_: self._change(take, first, stop), *there)

    def _change(
        self, change: Callable[[int, int], None], first: int, stop: int
    ) -> None:
        """Change the state of pages; remember those that it was interrupted in."""
        run = first, stop
        self._doubtful.append(run)
        try:
            change(first, stop)
        except MadlError:  # the device's own: nothing has changed
            self._doubtful.remove(run)
            raise
        self._doubtful.remove(run)

    def _commit(self, first: int, stop: int) -> None:
        nbytes = (stop - first) * self.page_nbytes
        offset = first * self.page_nbytes
        self._claimed(
            nbytes, partial(self.backend.commit, self.reservation, offset, nbytes)
        )
        self.blocks.pages.commit(first, stop)
        self.budget.commit(nbytes)

    def _decommit(self, first: int, stop: int) -> None:
        nbytes = (stop - first) * self.page_nbytes
        self.backend.decommit(self.reservation, first * self.page_nbytes, nbytes)
        self.blocks.pages.decommit(first, stop)
        self.budget.decommit(nbytes)

    def _move(self, first: int, stop: int, into: "Arena", destination: int) -> None:
        page_nbytes = self.page_nbytes
        end = (destination + stop - first) * page_nbytes
        # Before the call: a move that fails may have left content there.
        into.use_until(end)
        self.backend.remap(
            self.reservation,
            first * page_nbytes,
            destination * page_nbytes,
            (stop - first) * page_nbytes,
            into=into.reservation,
        )
        self.blocks.pages.decommit(first, stop)
        into.blocks.pages.commit(destination, destination + stop - first)

    def _claimed(self, nbytes: int, take: Callable[[], _Taken]) -> _Taken:
        """Take bytes from the device that the pool, and all together, may have."""
        # Claimed before the call, during which other pools draw on the same limits.
        if not self.budget.claim(nbytes):
            raise OutOfMemoryError(OutOfMemoryReport(self.backend.device, nbytes))
        try:
            return take()
        except BaseException:
            self.budget.give_back(nbytes)
            raise

    def use_until(self, end: int) -> int:
        """Note that what lies before ``end`` is used; return how much of it was."""
        with counting:
            # No max(): a call lets another thread run, whose mark would be undone.
            used = self.unused_from
            if end > used:
                self.unused_from = end
        return min(end, used)

    def release(self) -> None:
        """Give the reservation back; no block of it is live.

        Raises:
            MadlError: The device keeps it, and so does the arena.
        """
        self.is_leaving = True
        try:
            self.backend.release(self.reservation)
        except MadlError:
            self.is_leaving = False
            raise
        self.budget.decommit(self.committed_nbytes)

    def leave_again(self) -> None:
        """Release it, whether or not an interrupted ``release`` did. Idempotent."""
        with suppress(MadlError, ValueError):  # it is not known any more
            self.backend.release(self.reservation)

    def recover(self, placed: list[tuple[int, int]]) -> None:
        """Put right what a call was interrupted in: all that is certain are blocks.

        Args:
            placed: ``(offset, nbytes)`` of each.
        """
        doubtful = list(self._doubtful)
        self.blocks.rebuild(placed, doubtful)
        for first, stop in doubtful:
            self.backend.settle(
                self.reservation,
                first * self.page_nbytes,
                (stop - first) * self.page_nbytes,
                committed_nbytes=self.committed_nbytes,
            )
        self._doubtful = []  # after all of it: if one fails, the next recovery retries
