"""Free blocks in address order, searchable by size.

A plain skip list finds a *key* in O(log n). First fit asks another question: which
is the lowest block of at least n bytes? So every link also carries its *reach*: the
largest block from the node it leaves up to, but without, the node it lands on. A
link whose reach is too small is followed without a look at what lies under it.
"""

from madl.errors import CorruptedPoolError, UnknownBlockError

# The compiled build binds these names to the C functions in skiplist.pxd, with which
# a plain ``def`` would clash.
globals()["_words"] = lambda count: [0] * count
globals()["_discard"] = lambda words: None


class SkipList:
    """The free blocks of one arena. Neighbours never touch: ``put`` coalesces them.

    All nodes live in one array of words, each as a record that starts at index x:

    ====================  ======================================================
    ``words[x]``          offset of the block
    ``words[x+1]``        height: the number of levels the node takes part in
    ``words[x+2+2*l]``    next node on level l; 0 is the end
    ``words[x+3+2*l]``    reach of that link; on level 0 it is the block's nbytes
    ====================  ======================================================

    Record 0 is the head. It has one level more than any node, and its link on the
    topmost level spans the whole list, so its reach is the largest block of all.

    Expected O(log n) per operation, with a fixed seed: the same calls give the same
    structure on every machine and in both builds. Not thread-safe. What ``reserve``
    has made room for needs no memory later: compiled, the methods that say so run under
    a guard, where nothing may raise, and return a status instead.
    Source: W. Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees",
    CACM 33(6), 1990; the idea of summing up what a link skips is section 3.4 of
    his "A Skip List Cookbook", 1990 (there for positions, here for sizes).
    """

    def __init__(self) -> None:
        self.max_height = 12  # with one level in four, good for 16 million blocks
        self.capacity = 1024
        self.words = _words(self.capacity)
        self.path = _words(self.max_height + 2)
        self.unused = _words(self.max_height + 2)
        if not (self.words and self.path and self.unused):
            raise MemoryError("no memory for the index of free blocks")
        self.end = 2 + 2 * (self.max_height + 1)
        self.made = 0  # records, unused ones included
        self.reserved = 0
        self.words[0] = -1
        self.words[1] = self.max_height + 1
        self.height = 1  # levels in use by nodes; the head has one more
        self.count = 0
        self.seed = 0x2545F491
        self.found = 0
        self.before_found = 0
        self.joined_offset = 0
        self.joined_nbytes = 0
        self.visits = 0
        self.searches = 0

    def __del__(self) -> None:
        try:
            _discard(self.words)
            _discard(self.path)
            _discard(self.unused)
        except AttributeError:  # interpreted, and interrupted before there were any
            return

    def __len__(self) -> int:
        return self.count

    def reserve(self, count: int) -> bool:
        """Make room for ``count`` blocks in all, until another number is asked for.

        Returns:
            Whether there was memory for it; nothing has changed if not.
        """
        while 4 * (count - self.made) > self.capacity - self.end:
            if not self._double():
                return False
        self.reserved = count
        return True

    def largest(self) -> int:
        """Return the bytes of the largest block, 0 when there is none. O(1)."""
        return self.words[3 + 2 * self.height]

    def find(self, nbytes: int) -> int:
        """Return the offset of the lowest block of at least ``nbytes``, or -1.

        The block stays free; ``carve_found`` takes it as long as nothing else has
        changed the list.
        """
        words = self.words
        slot = 2 + 2 * self.height
        if words[slot + 1] < nbytes:
            return -1
        path = self.path
        level = self.height
        path[level] = 0
        node = 0
        before = 0
        steps = 0
        while level > 0:
            level -= 1
            slot -= 2
            # Never past a link that reaches far enough: going down there is what
            # makes the block found the *first* that fits.
            while words[node + slot + 1] < nbytes:
                before = node
                node = words[node + slot]
                steps += 1
            path[level] = node
            steps += 1
        self.found = node
        self.before_found = before
        self.visits += steps
        self.searches += 1
        return words[node]

    def carve_found(self, nbytes: int) -> None:
        """Take ``nbytes`` from the low end of the block that ``find`` returned."""
        words = self.words
        node = self.found
        had = words[node + 3]
        if had > nbytes:
            words[node] += nbytes
            words[node + 3] = had - nbytes
            self._lower(had)
        else:
            self._complete_path(node, self.before_found)
            self._unlink(node)

    def find_best(self, nbytes: int, most: int) -> int:
        """Return the smallest of the first ``most`` blocks that fit, or -1.

        The lowest of equals. ``carve_best`` takes it as long as nothing else has
        changed the list. Expected O(log n + most) where the blocks that fit lie close
        to each other; O(n) at worst, but what is out of reach is skipped.
        """
        if self.find(nbytes) < 0:
            return -1
        words = self.words
        node = self.found
        best = node
        fitting = 1
        steps = 0
        while words[best + 3] > nbytes and fitting < most:
            slot = 2 + 2 * (words[node + 1] - 1)
            while slot > 2 and words[node + slot + 1] >= nbytes:
                slot -= 2
            node = words[node + slot]
            if node == 0:
                break
            steps += 1
            if words[node + 3] >= nbytes:
                fitting += 1
                if words[node + 3] < words[best + 3]:
                    best = node
        self.visits += steps
        return words[best]

    def carve_best(self, offset: int, nbytes: int) -> None:
        """Take ``nbytes`` from the low end of the block that ``find_best`` returned."""
        if self.words[self.found] == offset:
            self.carve_found(nbytes)
        else:
            self.try_carve(offset, nbytes)

    def find_aligned(self, nbytes: int, alignment: int) -> int:
        """Return the lowest aligned offset with ``nbytes`` free bytes, or -1.

        O(n) in the worst case: a block may be large enough and yet have no aligned
        place for ``nbytes``.
        """
        if self.find(nbytes) < 0:
            return -1
        words = self.words
        node = self.found
        while node:
            offset = (words[node] + alignment - 1) // alignment * alignment
            if offset + nbytes <= words[node] + words[node + 3]:
                return offset
            node = words[node + 2]
        return -1

    def carve(self, offset: int, nbytes: int) -> None:
        """Take ``[offset, offset + nbytes)`` out of the free block that covers it.

        Raises:
            UnknownBlockError: Some of the range is not free. Nothing changed.
            MemoryError: There is none for the index. Nothing changed.
        """
        _raise_for(self.try_carve(offset, nbytes), offset, nbytes)

    def try_carve(self, offset: int, nbytes: int) -> int:
        """Do as ``carve`` does; return 0, or what it would raise: -1 or -2."""
        words = self.words
        node = self._descend(offset + 1)
        start = words[node]
        stop = start + words[node + 3]
        if node == 0 or stop < offset + nbytes:
            return -1
        had = words[node + 3]
        if start < offset:
            # First: what lies behind the range may be one block more.
            if not self.reserve(max(self.reserved, self.count + 1)):
                return -2
            words = self.words  # reserve may have moved the array
            words[node + 3] = offset - start
            self._lower(had)
            if stop > offset + nbytes:
                self.try_put(offset + nbytes, stop - offset - nbytes)
        elif had > nbytes:
            words[node] += nbytes
            words[node + 3] = had - nbytes
            self._lower(had)
        else:
            self._descend(offset)
            self._unlink(node)
        return 0

    def put(self, offset: int, nbytes: int) -> None:
        """Add ``[offset, offset + nbytes)``, joined with free neighbours.

        ``joined_offset`` and ``joined_nbytes`` tell the block that results.

        Raises:
            UnknownBlockError: Some of the range is free already. Nothing changed.
            MemoryError: There is none for the index. Nothing changed.
        """
        _raise_for(self.try_put(offset, nbytes), offset, nbytes)

    def try_put(self, offset: int, nbytes: int) -> int:
        """Do as ``put`` does; return 0, or what it would raise: -1 or -2."""
        words = self.words
        left = self._descend(offset)
        right = words[left + 2]
        stop = offset + nbytes
        if (left and words[left] + words[left + 3] > offset) or (
            right and words[right] < stop
        ):
            return -1
        if left and words[left] + words[left + 3] == offset:
            total = words[left + 3] + nbytes
            if right and words[right] == stop:
                total += words[right + 3]
                self._unlink(right)
            words[left + 3] = total
            self._raise_from(1, total)
            self.joined_offset = words[left]
        elif right and words[right] == stop:
            total = words[right + 3] + nbytes
            self._extend_down(right, offset, total)
            self.joined_offset = offset
        else:
            total = nbytes
            if not self._insert(offset, nbytes, right):
                return -2
            self.joined_offset = offset
        self.joined_nbytes = total
        return 0

    def covering(self, offset: int) -> int:
        """Return where the free block that covers ``offset`` starts, or -1."""
        node = self._descend(offset + 1)
        if node and self.words[node] + self.words[node + 3] > offset:
            return self.words[node]
        return -1

    def _descend(self, offset: int) -> int:
        """Fill the path with the last nodes below ``offset``; return the lowest's."""
        words = self.words
        path = self.path
        level = self.height
        slot = 2 + 2 * level
        path[level] = 0
        node = 0
        while level > 0:
            level -= 1
            slot -= 2
            following = words[node + slot]
            while following and words[following] < offset:
                node = following
                following = words[node + slot]
            path[level] = node
        return node

    def _complete_path(self, node: int, before: int) -> None:
        # The search stood on the node itself from its highest level down; to unlink
        # it, the path has to hold the nodes before it there.
        words = self.words
        path = self.path
        level = words[node + 1]
        while level > 0:
            level -= 1
            slot = 2 + 2 * level
            while words[before + slot] != node:
                before = words[before + slot]
            path[level] = before

    def _reach_over(self, first: int, stop: int, slot: int, enough: int) -> int:
        """Return the reach of ``[first, stop)`` from links one level below ``slot``.

        May return early with less, once ``enough`` is reached.
        """
        words = self.words
        largest = 0
        node = first
        while True:
            reach = words[node + slot - 1]
            if reach > largest:
                largest = reach
                if largest >= enough:
                    return largest
            node = words[node + slot - 2]
            if node == stop:
                return largest

    def _lower(self, had: int) -> None:
        """Repair the reach along the path after a block of ``had`` shrank or went."""
        words = self.words
        path = self.path
        level = 1
        slot = 4
        while level <= self.height:
            node = path[level]
            if words[node + slot + 1] > had:
                return  # another block makes this reach, and all those above
            reach = self._reach_over(node, words[node + slot], slot, had)
            if reach >= had:
                return
            words[node + slot + 1] = reach
            level += 1
            slot += 2

    def _raise_from(self, level: int, nbytes: int) -> None:
        """Let the path's links from ``level`` up reach ``nbytes``."""
        words = self.words
        path = self.path
        slot = 2 + 2 * level
        while level <= self.height:
            node = path[level]
            if words[node + slot + 1] >= nbytes:
                return
            words[node + slot + 1] = nbytes
            level += 1
            slot += 2

    def _extend_down(self, node: int, offset: int, nbytes: int) -> None:
        """Let a node start lower and be larger; its order does not change."""
        words = self.words
        words[node] = offset
        height = words[node + 1]
        slot = 2
        level = 0
        while level < height:
            if words[node + slot + 1] < nbytes:
                words[node + slot + 1] = nbytes
            level += 1
            slot += 2
        self._raise_from(height, nbytes)

    def _insert(self, offset: int, nbytes: int, right: int) -> bool:
        """Link a new node between the path's lowest and ``right``.

        Returns:
            Whether there was memory for it.
        """
        path = self.path
        node = self._new_record(self._draw_height())
        if node == 0:
            return False
        words = self.words  # after _new_record, which may move the array
        words[node] = offset
        height = words[node + 1]
        words[node + 2] = right
        words[node + 3] = nbytes
        words[path[0] + 2] = node
        level = 1
        slot = 4
        while level < height:
            before = path[level]
            stop = words[before + slot]
            words[node + slot] = stop
            words[before + slot] = node
            reach = self._reach_over(node, stop, slot, 0x7FFFFFFFFFFFFFFF)
            words[node + slot + 1] = reach
            had = words[before + slot + 1]
            if reach >= had:  # the link's largest may now lie behind the new node
                words[before + slot + 1] = self._reach_over(before, node, slot, had)
            level += 1
            slot += 2
        self._raise_from(height, nbytes)
        self.count += 1
        return True

    def _unlink(self, node: int) -> None:
        """Take a node out; the path holds the nodes before it on its levels."""
        words = self.words
        path = self.path
        height = words[node + 1]
        words[path[0] + 2] = words[node + 2]
        level = 1
        slot = 4
        while level < height:
            before = path[level]
            words[before + slot] = words[node + slot]
            if words[node + slot + 1] > words[before + slot + 1]:
                words[before + slot + 1] = words[node + slot + 1]
            level += 1
            slot += 2
        self._lower(words[node + 3])
        words[node] = self.unused[height]
        self.unused[height] = node
        self.count -= 1

    def _draw_height(self) -> int:
        """Return a random height, one in four of each level; grow the head to it."""
        words = self.words
        path = self.path
        self.seed = (self.seed * 1103515245 + 12345) & 0x7FFFFFFF
        bits = self.seed >> 7  # the low bits of this generator hardly vary
        height = 1
        while bits & 3 == 0 and height < self.max_height:
            height += 1
            bits >>= 2
        if height > self.height:
            largest = words[3 + 2 * self.height]
            while self.height < height:
                self.height += 1
                path[self.height] = 0
                words[2 + 2 * self.height] = 0
                words[3 + 2 * self.height] = largest
        return height

    def _new_record(self, height: int) -> int:
        """Return a record with its height in it, or 0 when there is no memory."""
        node = self.unused[height]
        if node:
            self.unused[height] = self.words[node]
            return node
        # A tall one may take what is reserved for lower ones only where there is more.
        others = max(self.reserved - self.made - 1, 0)
        end = self.end + 2 + 2 * height + 4 * others
        if end > self.capacity and not self._double():
            return self._spare_record()
        return self._record_at_end(height)

    def _record_at_end(self, height: int) -> int:
        node = self.end
        self.end = node + 2 + 2 * height
        self.made += 1
        self.words[node + 1] = height
        return node

    def _spare_record(self) -> int:
        """Return a record of any height that needs no memory, or 0."""
        height = 1
        while height <= self.max_height:
            node = self.unused[height]
            if node:
                self.unused[height] = self.words[node]
                return node
            height += 1
        return self._record_at_end(1) if self.end + 4 <= self.capacity else 0

    def _double(self) -> bool:
        """Double the array; return whether there was memory for it."""
        count = self.capacity
        old = self.words
        new = _words(2 * count)
        if not new:
            return False
        i = 0
        while i < count:
            new[i] = old[i]
            i += 1
        self.words = new
        _discard(old)
        self.capacity = 2 * count
        return True

    def blocks(self) -> list[tuple[int, int]]:
        """Return ``(offset, nbytes)`` of every free block, lowest first. O(n)."""
        found = []
        node = self.words[2]
        while node:
            found.append((self.words[node], self.words[node + 3]))
            node = self.words[node + 2]
        return found

    def check(self) -> None:
        """Verify every invariant.

        Raises:
            CorruptedPoolError: With what was found and what was expected.

        Complexity: O(n). Changes nothing.
        """
        blocks = self.blocks()
        if len(blocks) != self.count:
            raise CorruptedPoolError("free blocks counted", self.count, len(blocks))
        previous_stop = -1
        for offset, nbytes in blocks:
            if offset <= previous_stop or nbytes <= 0:
                raise CorruptedPoolError(
                    "free blocks in order and apart", (offset, nbytes), previous_stop
                )
            previous_stop = offset + nbytes
        for level in range(1, self.height + 1):
            self._check_level(level)

    def _check_level(self, level: int) -> None:
        words = self.words
        slot = 2 + 2 * level
        node = 0
        while True:
            stop = words[node + slot]
            below = node
            largest = 0
            while True:
                largest = max(largest, words[below + slot - 1])
                below = words[below + slot - 2]
                if below == stop:
                    break
                if below == 0:
                    raise CorruptedPoolError(
                        "links of a level", stop, "on the one below"
                    )
            if words[node + slot + 1] != largest:
                raise CorruptedPoolError(
                    f"reach of a link on level {level}", words[node + slot + 1], largest
                )
            node = stop
            if node == 0:
                return


def _raise_for(status: int, offset: int, nbytes: int) -> None:
    if status == -1:
        raise UnknownBlockError(offset, nbytes)
    if status:
        raise MemoryError("no memory for the index of free blocks")
