"""Which pages of an arena are committed, live or idle, and which to recycle.

A page is the unit in which an arena is committed: a constant number of bytes, fixed
when the arena is reserved. A committed page is *idle* while no byte of it is live.
Idle pages are what a pool takes from a hole and commits elsewhere before it asks the
device for more.
"""

from madl.errors import CorruptedPoolError

# One byte a page tells its state: 0 is not committed, 1 committed with live bytes on
# it, 2 committed and idle. The compiled build binds the four names below to the C
# functions in pages.pxd, with which a plain ``def`` would clash.
globals()["_states"] = bytearray
globals()["_discard"] = lambda states: None
globals()["_count"] = lambda states, state, first, stop: states.count(
    state, first, stop
)
globals()["_last"] = lambda states, state, first, stop: states.rfind(state, first, stop)


def _fill(states: bytearray, state: int, first: int, stop: int) -> None:
    states[first:stop] = bytes((state,)) * (stop - first)


globals()["_set"] = _fill


class Pages:
    """The state of every page of one arena.

    All ranges of pages are half open: ``[first, stop)``. Not thread-safe.
    """

    def __init__(self, count: int, page_nbytes: int) -> None:
        self.count = count
        self.page_nbytes = page_nbytes
        self.states = _states(count)
        self.committed = 0
        self.idle = 0
        self.top = 0  # no page from here up is committed
        self.vacated = 0  # how often frees have made pages idle

    def __del__(self) -> None:
        try:
            _discard(self.states)
        except AttributeError:  # interpreted, and interrupted before there were any
            return

    def missing(self, offset: int, nbytes: int) -> int:
        """Return how many pages under a range of bytes are not committed."""
        first = offset // self.page_nbytes
        stop = (offset + nbytes - 1) // self.page_nbytes + 1
        if stop - first == 1:
            return 1 if self.states[first] == 0 else 0
        return _count(self.states, 0, first, stop)

    def idle_under(self, offset: int, nbytes: int) -> int:
        """Return how many pages under a range of bytes are idle."""
        first = offset // self.page_nbytes
        stop = (offset + nbytes - 1) // self.page_nbytes + 1
        return _count(self.states, 2, first, stop)

    def occupy(self, offset: int, nbytes: int) -> None:
        """Mark the pages under a range that becomes live; all are committed."""
        states = self.states
        first = offset // self.page_nbytes
        stop = (offset + nbytes - 1) // self.page_nbytes + 1
        if stop - first == 1:
            if states[first] == 2:
                states[first] = 1
                self.idle -= 1
        else:
            self.idle -= _count(states, 2, first, stop)
            _set(states, 1, first, stop)

    def vacate(
        self, offset: int, nbytes: int, free_offset: int, free_nbytes: int
    ) -> None:
        """Mark the pages under a freed range idle that have no other live byte.

        Args:
            offset: Where the freed range starts.
            nbytes: Its bytes.
            free_offset: Where the free block starts that it has become a part of.
            free_nbytes: The bytes of that block: pages inside it have no live byte.
        """
        page_nbytes = self.page_nbytes
        first = offset // page_nbytes
        stop = (offset + nbytes - 1) // page_nbytes + 1
        if first * page_nbytes < free_offset:
            first += 1
        if stop * page_nbytes > free_offset + free_nbytes:
            stop -= 1
        if first < stop:
            # Every page under a live range is committed, so all of these were live.
            _set(self.states, 2, first, stop)
            self.idle += stop - first
            self.vacated += 1

    def commit(self, first: int, stop: int) -> None:
        """Note that pages are committed; they are idle until occupied."""
        _set(self.states, 2, first, stop)
        if stop > self.top:
            self.top = stop
        self.committed += stop - first
        self.idle += stop - first

    def decommit(self, first: int, stop: int) -> None:
        """Note that idle pages are no longer committed."""
        _set(self.states, 0, first, stop)
        self.committed -= stop - first
        self.idle -= stop - first
        if stop == self.top:
            while first > 0 and self.states[first - 1] == 0:
                first -= 1
            self.top = first

    def missing_runs(self, offset: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the runs ``(first, stop)`` not committed under a range of bytes."""
        first = offset // self.page_nbytes
        stop = (offset + nbytes - 1) // self.page_nbytes + 1
        runs = []
        page = first
        while page < stop:
            start = page
            while page < stop and self.states[page] == 0:
                page += 1
            if page > start:
                runs.append((start, page))
            while page < stop and self.states[page] != 0:
                page += 1
        return runs

    def last_idle_run(
        self, most: int, keep_first: int = 0, keep_stop: int = 0
    ) -> tuple[int, int]:
        """Return the highest run of at most ``most`` idle pages.

        ``(0, 0)`` when there is none. O(pages) in the worst case, below the highest
        committed one, at the speed of memory: one byte a page.

        Args:
            most: Pages, at least 1.
            keep_first: The run has no page from here up to ``keep_stop``.
            keep_stop: Higher than ``keep_first``, or both are 0.
        """
        stop = _last(self.states, 2, 0, self.top) + 1
        if keep_first < stop <= keep_stop:
            stop = _last(self.states, 2, 0, keep_first) + 1
        if stop == 0:
            return (0, 0)
        lowest = keep_stop if stop > keep_stop else 0
        first = stop - 1
        while first > lowest and stop - first < most and self.states[first - 1] == 2:
            first -= 1
        return (first, stop)

    def without(self, lost: list[tuple[int, int]]) -> "Pages":
        """Return new pages of which the same are committed, all idle.

        Args:
            lost: Runs ``(first, stop)`` that are not committed any more, whatever the
                states say.
        """
        pages = Pages(self.count, self.page_nbytes)
        pages.vacated = self.vacated + 1  # all that is idle counts as freed now
        states = self.states
        top = max(_last(states, 1, 0, self.count), _last(states, 2, 0, self.count)) + 1
        page = 0
        while page < top:
            start = page
            while page < top and states[page] != 0:
                page += 1
            if page > start:
                pages.commit(start, page)
            while page < top and states[page] == 0:
                page += 1
        for first, stop in lost:
            for page in range(first, stop):
                if pages.states[page] != 0:
                    pages.decommit(page, page + 1)
        return pages

    def check(self, free_blocks: list[tuple[int, int]]) -> None:
        """Verify the counts, and each page's state against the free blocks.

        Raises:
            CorruptedPoolError: With what was found and what was expected.
        """
        states = self.states
        committed = self.count - _count(states, 0, 0, self.count)
        idle = _count(states, 2, 0, self.count)
        if (committed, idle) != (self.committed, self.idle):
            raise CorruptedPoolError(
                "pages counted", (self.committed, self.idle), (committed, idle)
            )
        expected = 0
        for offset, nbytes in free_blocks:
            first = -(-offset // self.page_nbytes)
            stop = min((offset + nbytes) // self.page_nbytes, self.count)
            if first < stop:
                expected += _count(states, 2, first, stop)
                live = _count(states, 1, first, stop)
                if live:
                    raise CorruptedPoolError("live pages in a free block", live, 0)
        if idle != expected:
            raise CorruptedPoolError("idle pages inside free blocks", idle, expected)
