"""Reservations of Linux: what a commit, a decommit and a move are in each kind.

A *lazy* reservation is readable and writable from the start and the first touch
commits: no call, no split. A *strict* one is PROT_NONE until it is committed; it is
for kernels and limits that count what is writable, not what is touched. In one of
*explicit* huge pages, these are mapped where it is committed.
"""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from madl.backends.host import HostReservation, proc
from madl.backends.host import linux_calls as calls
from madl.backends.host.posix import MapFlags, PosixMemory, PosixReservation
from madl.sizes import align_up

_FLAGS = MapFlags(calls.ANONYMOUS, reserving=0)  # a lazy reservation adds its own


class Choices(PosixMemory):
    """What new reservations are made with, and what those of one memory share."""

    def __init__(self) -> None:
        super().__init__(calls.system, _FLAGS)
        self.advice = mmap.MADV_NOHUGEPAGE
        """On huge pages, for the kernel."""
        self.has_names = False
        """Whether this kernel shows names of anonymous memory."""
        self.prefer_node: Callable[[int, int], bool] | None = None
        """Asks for a range to be of a NUMA node; ``None`` for the nearest."""
        self.fault_in: Callable[[int, int], bool] | None = None
        """Faults a range in when it is committed; ``None`` to wait for the touch."""
        self.moves_many = True
        """Whether one call may move several VMAs: so until the kernel refuses."""
        self.cut_count = 0
        """Borders between VMAs in all lazy reservations."""
        self._cut_limit = proc.most_vmas() // 2

    def may_move(self) -> bool:
        """Whether ``mremap`` is safe now.

        Under a limit lowered below what is in use, it unmaps the destination and then
        fails, and so does mapping it again. And threads and libraries need VMAs too.
        """
        return self.cut_count < self._cut_limit and not proc.has_limit()


class LinuxReservation(PosixReservation):
    """A range of addresses, and what madl has done to it."""

    _memory: Choices
    _access = calls.PROT_NONE  # of addresses that nothing is committed at

    def __init__(self, memory: Choices, address: int, nbytes: int) -> None:
        super().__init__(memory, address, nbytes)
        self._advice = memory.advice
        self._prefer_node = memory.prefer_node
        self._fault_in = memory.fault_in
        try:
            self._dress(address, nbytes)
        except BaseException:  # a Ctrl-C: the address has no owner yet
            calls.system.unmap(address, nbytes)
            raise
        # The kernel keeps lazy addresses as one VMA until memory is moved in them.
        # Every border between two VMAs of them is in this sorted list of offsets.
        self._cuts: list[int] = []

    def _dress(self, address: int, nbytes: int) -> None:
        """Give new VMAs the advice and the name of the others, or they never join."""
        # A kernel without huge pages refuses the advice, which may be ignored.
        calls.system.madvise(address, nbytes, self._advice)
        if self._memory.has_names:
            calls.give_name(address, nbytes)
        if self._prefer_node is not None:
            self._prefer_node(address, nbytes)

    def release(self) -> None:
        """Give the address space back."""
        super().release()
        self._memory.cut_count -= len(self._cuts)

    def _prefault(self, address: int, nbytes: int) -> None:
        """Fault in what has just been committed, where that was asked for."""
        if self._fault_in is None or self._fault_in(address, nbytes):
            return
        try:  # the error has no name, or it and this frame would keep each other
            raise calls.error_of("madvise", "prefault", nbytes, is_refusal=True)
        finally:
            self.decommit(address - self.address, nbytes)

    def _restore(self, offset: int, nbytes: int) -> None:
        """Reserve addresses again that a call which failed may have unmapped."""
        address = self.address + offset
        # This advice changes nothing, and ENOMEM says that a part is unmapped.
        if calls.system.madvise(address, nbytes, mmap.MADV_NORMAL) == 0:
            return
        # MAP_FIXED_NOREPLACE: another thread may have mapped something there by now,
        # which MAP_FIXED would unmap under it.
        how = self._access, calls.FILL_HOLE, -1, 0
        if calls.system.mmap(address, nbytes, *how) != address:
            raise calls.error_of("mmap", "restore", nbytes)
        self._dress(address, nbytes)

    def _replace(self, address: int, nbytes: int, access: int) -> bool:
        """Map new memory that is like its neighbours; return whether it worked."""
        is_replaced = super()._replace(address, nbytes, access)
        if is_replaced:
            self._dress(address, nbytes)
        return is_replaced


class LazyReservation(LinuxReservation):
    """Readable and writable address space that the first touch commits."""

    _access = calls.READ_WRITE

    def commit(self, offset: int, nbytes: int) -> None:
        """Leave it to the first touch, or fault everything in now."""
        self._prefault(self.address + offset, nbytes)

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the memory back; the addresses read as zero again."""
        calls.discard(self.address + offset, nbytes)

    def remap(
        self,
        source: int,
        destination: int,
        nbytes: int,
        into: HostReservation | None = None,
    ) -> None:
        """Move page-table entries; where the kernel will not, let the pages go.

        Lazy addresses are usable whether committed or not, so a failure halfway
        leaves both ranges as they were, but for content, which is not promised.
        """
        target = self if into is None else into
        if not isinstance(target, LazyReservation):
            super().remap(source, destination, nbytes, target)
            return
        cuts, stop = self._cuts, source + nbytes
        inside = cuts[bisect_right(cuts, source) : bisect_left(cuts, stop)]
        may_move = self._memory.may_move()
        if may_move and inside and self._memory.moves_many:
            borders = [border - source for border in inside]
            if target._receive(self.address + source, destination, nbytes, borders):
                return
            self._memory.moves_many = False  # a kernel before 6.17: one VMA in a call
        for start, end in pairwise((source, *inside, stop)):
            offset = destination + start - source
            address = self.address + start
            if not (may_move and target._receive(address, offset, end - start)):
                target._restore(offset, end - start)
                calls.discard(address, end - start)
                target._prefault(target.address + offset, end - start)

    def _receive(
        self, source: int, destination: int, nbytes: int, borders: Sequence[int] = ()
    ) -> bool:
        """Move the memory at an address to an offset; say whether it worked.

        ``borders`` are those between VMAs inside what is moved, from its start.
        """
        target = self.address + destination
        if calls.system.mremap(source, nbytes, nbytes, calls.MOVE, target) != target:
            return False
        # What was moved keeps its page offset in the kernel, so it merges with no
        # neighbour: there is a border of VMAs at each of its ends.
        first = bisect_left(self._cuts, destination)
        last = bisect_right(self._cuts, destination + nbytes)
        cuts = [destination + border for border in (0, *borders, nbytes)]
        self._memory.cut_count += len(cuts) - (last - first)
        self._cuts[first:last] = cuts
        return True


class StrictReservation(LinuxReservation):
    """Address space that cannot be touched before it is committed.

    A remap is an exchange: ``mremap`` would count the memory of both places.
    """

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give back the memory and, when it can be, what it counts for."""
        # mprotect(PROT_NONE) is 4 us faster than the 16 of a new mapping, but what was
        # once touched stays counted (measured: 302 MiB of 302).
        if not self._seal(offset, nbytes):
            # It would split a VMA and max_map_count forbids that.
            calls.discard(self.address + offset, nbytes)


class ExplicitReservation(LinuxReservation):
    """Address space in which huge pages that were set aside are mapped.

    The kernel takes them from its own stock when they are mapped, or refuses: a touch
    never fails. They are never swapped, and a fork needs as many to spare. A remap is
    an exchange: older kernels move no huge pages of this kind.
    """

    def __init__(
        self, memory: Choices, address: int, nbytes: int, huge_nbytes: int
    ) -> None:
        super().__init__(memory, address, nbytes)
        self._huge_nbytes = huge_nbytes

    def commit(self, offset: int, nbytes: int) -> None:
        """Map huge pages, of which there are enough, or change nothing."""
        whole = align_up(nbytes, self._huge_nbytes)
        if calls.map_explicit(self.address + offset, whole):
            self._dress(self.address + offset, whole)
            self._prefault(self.address + offset, whole)
            return
        try:
            raise calls.error_of("mmap", "commit", nbytes, is_refusal=True)
        finally:
            self._restore(offset, whole)

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the huge pages back to the kernel's stock."""
        super().decommit(offset, align_up(nbytes, self._huge_nbytes))
