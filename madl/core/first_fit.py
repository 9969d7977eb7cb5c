"""One arena's blocks: where the next one goes, and what becomes of a freed one.

Address-ordered first fit: a block is cut from the low end of the lowest free block
that is large enough; a freed block is joined with its free neighbours. Every page
under a live block is committed, so placing one may need pages first.
"""

from madl.core.pages import Pages
from madl.core.skiplist import SkipList
from madl.errors import CorruptedPoolError, UnknownBlockError


class FirstFit:
    """The blocks of one arena over its pages. Not thread-safe.

    Args:
        nbytes: Size of the arena, a multiple of ``page_nbytes``.
        page_nbytes: The unit of committing.
        look_ahead: How many of the lowest blocks that fit are looked at; the smallest
            of them is taken. 1 is plain first fit, a large number is best fit.
    """

    def __init__(self, nbytes: int, page_nbytes: int, look_ahead: int = 1) -> None:
        self.nbytes = nbytes
        self.look_ahead = look_ahead
        self.index = SkipList()
        self.pages = Pages(nbytes // page_nbytes, page_nbytes)
        self.free_nbytes = nbytes
        # Between so many blocks lie at most so many free ones and one. The index has
        # room for them before a block is placed, so that a free needs no memory.
        self.placed_count = 0
        self.index.put(0, nbytes)

    def reserve(self) -> bool:
        """Make room in the index for one more block; return whether there was memory.

        ``allocate`` and ``take`` do so as well.
        """
        return self.index.reserve(self.placed_count + 2)

    def find(self, nbytes: int, alignment: int = 0) -> int:
        """Return the offset at which a block would be placed, or -1."""
        if alignment:
            return self.index.find_aligned(nbytes, alignment)
        if self.look_ahead == 1:
            return self.index.find(nbytes)
        return self.index.find_best(nbytes, self.look_ahead)

    def allocate(self, nbytes: int) -> int:
        """Place a block where no page has to be committed for it.

        Returns:
            Its offset; -1 when no free block is large enough; -2 when the place for
            it lacks pages: commit those of ``find`` and ``take`` it, or free some
            memory below it first; -3 when there is no memory for the index. Nothing
            has changed then.

        Complexity: expected O(log n) in free blocks, and up to ``look_ahead`` more.
        """
        offset = self.find(nbytes)
        if offset < 0:
            return -1
        if self.pages.missing(offset, nbytes):
            return -2
        if not self.reserve():
            return -3
        self.index.carve_best(offset, nbytes)
        self.pages.occupy(offset, nbytes)
        self.free_nbytes -= nbytes
        self.placed_count += 1
        return offset

    def take(self, offset: int, nbytes: int) -> None:
        """Place a block at ``offset``; the range is free and its pages committed.

        Raises:
            UnknownBlockError: Part of the range is not free. Nothing changed.
            MemoryError: There is none for the index. Nothing changed.
        """
        if not self.reserve():
            raise MemoryError("no memory for the index of free blocks")
        self.index.carve(offset, nbytes)
        self.pages.occupy(offset, nbytes)
        self.free_nbytes -= nbytes
        self.placed_count += 1

    def free(self, offset: int, nbytes: int) -> None:
        """Give a block back, joined with its free neighbours.

        Raises:
            UnknownBlockError: Part of the range is free already. Nothing changed.

        Complexity: expected O(log n) in free blocks.
        """
        if self.try_free(offset, nbytes) < 0:
            raise UnknownBlockError(offset, nbytes)

    def try_free(self, offset: int, nbytes: int) -> int:
        """Do as ``free`` does; return 0, or -1 where it would raise."""
        status = self.index.try_put(offset, nbytes)
        if status < 0:
            return status
        self.pages.vacate(
            offset, nbytes, self.index.joined_offset, self.index.joined_nbytes
        )
        self.free_nbytes += nbytes
        self.placed_count -= 1
        return 0

    def rebuild(
        self, placed: list[tuple[int, int]], lost: list[tuple[int, int]]
    ) -> None:
        """Make index and pages anew, after a change that was interrupted.

        They are made aside and then put in place, so this may be interrupted as well.

        Args:
            placed: ``(offset, nbytes)`` of every block; all else is free.
            lost: Runs of pages ``(first, stop)`` that are not committed, whatever was
                noted of them.

        Complexity: O(n log n) in blocks, and O(pages).
        """
        index, pages = SkipList(), self.pages.without(lost)
        if not index.reserve(len(placed) + 1):
            raise MemoryError("no memory for the index of free blocks")
        index.visits, index.searches = self.index.visits, self.index.searches
        free_nbytes = self.nbytes
        end = 0
        for offset, nbytes in sorted(placed):
            if offset > end:
                index.put(end, offset - end)
            pages.occupy(offset, nbytes)
            free_nbytes -= nbytes
            end = offset + nbytes
        if end < self.nbytes:
            index.put(end, self.nbytes - end)
        self.index, self.pages, self.free_nbytes = index, pages, free_nbytes
        self.placed_count = len(placed)

    def is_empty(self) -> bool:
        """Return whether all of the arena is one free block."""
        return self.free_nbytes == self.nbytes

    def largest_free(self) -> int:
        """Return the bytes of the largest free block, committed or not. O(1)."""
        return self.index.largest()

    def free_blocks(self) -> list[tuple[int, int]]:
        """Return ``(offset, nbytes)`` of every free block, lowest first. O(n)."""
        return self.index.blocks()

    def check(self) -> None:
        """Verify every invariant of the index and the pages.

        Raises:
            CorruptedPoolError: With what was found and what was expected.
        """
        self.index.check()
        blocks = self.index.blocks()
        free_nbytes = sum([nbytes for _, nbytes in blocks])
        if free_nbytes != self.free_nbytes:
            raise CorruptedPoolError("free bytes", self.free_nbytes, free_nbytes)
        self.pages.check(blocks)
