"""An arena written for obviousness: the model that the real one is held to."""

import re


class ReferenceArena:
    """Keeps no free list at all: it looks for the gaps each time.

    One byte of ``live`` stands for each byte of the arena: 0 is free, 1 is live.
    """

    def __init__(self, nbytes: int, page_nbytes: int = 1) -> None:
        self.live = bytearray(nbytes)
        self.page_nbytes = page_nbytes
        self.committed: set[int] = set()

    def gaps(self) -> list[tuple[int, int]]:
        """Return ``(offset, nbytes)`` of every free block, lowest first."""
        return [
            (gap.start(), gap.end() - gap.start())
            for gap in re.finditer(rb"\0+", self.live)
        ]

    def gap_around(self, offset: int) -> tuple[int, int]:
        """Return the free block that covers ``offset``; ``(-1, 0)`` if none does."""
        for start, nbytes in self.gaps():
            if start <= offset < start + nbytes:
                return start, nbytes
        return -1, 0

    def smallest_of_first(self, nbytes: int, most: int) -> int:
        """Return the smallest of the first ``most`` blocks that fit, or -1."""
        fitting = [gap for gap in self.gaps() if gap[1] >= nbytes][:most]
        return min(fitting, key=lambda gap: gap[1])[0] if fitting else -1

    def first_aligned(self, nbytes: int, alignment: int) -> int:
        """Return the lowest aligned offset with enough free bytes, or -1."""
        for offset in range(0, len(self.live) - nbytes + 1, alignment):
            if self.is_free(offset, nbytes):
                return offset
        return -1

    def is_free(self, offset: int, nbytes: int) -> bool:
        """Return whether a range lies in the arena and is wholly free."""
        return self.live[offset : offset + nbytes] == bytes(nbytes)

    def is_live(self, offset: int, nbytes: int) -> bool:
        """Return whether a range lies in the arena and is wholly live."""
        return self.live[offset : offset + nbytes] == b"\1" * nbytes

    def take(self, offset: int, nbytes: int) -> None:
        """Make a free range live."""
        assert self.is_free(offset, nbytes)
        self.live[offset : offset + nbytes] = b"\1" * nbytes

    def give(self, offset: int, nbytes: int) -> None:
        """Make a live range free."""
        assert self.is_live(offset, nbytes)
        self.live[offset : offset + nbytes] = bytes(nbytes)

    def pages_under(self, offset: int, nbytes: int) -> list[int]:
        """Return the pages that a range touches."""
        return sorted(
            {byte // self.page_nbytes for byte in range(offset, offset + nbytes)}
        )

    def missing(self, offset: int, nbytes: int) -> list[int]:
        """Return the pages under a range that are not committed."""
        return [
            page
            for page in self.pages_under(offset, nbytes)
            if page not in self.committed
        ]

    def idle(self) -> list[int]:
        """Return the committed pages without a live byte, lowest first."""
        return [
            page
            for page in sorted(self.committed)
            if self.is_free(page * self.page_nbytes, self.page_nbytes)
        ]
