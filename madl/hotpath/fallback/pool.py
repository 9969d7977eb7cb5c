"""Bins in front of the arenas' indexes, interpreted.

Bins are lists, and ``append`` and ``pop`` are atomic. All that changes the index
waits for an allocation that misses, under the pool's lock.
"""

import sys
import threading
from typing import Any

from madl.hotpath.fallback.account import Account, charges
from madl.hotpath.fallback.bins import LargeBin, Unbinning
from madl.hotpath.fallback.block import NOWHERE, Block
from madl.hotpath.fallback.duties import PoolDuties
from madl.hotpath.fallback.hands import has_block_in_hand
from madl.hotpath.fallback.lost import LostBlocks
from madl.hotpath.fallback.memory import Memory, make_memory
from madl.hotpath.fallback.wiping import Wiping
from madl.hotpath.reentrancy import locks_held
from madl.hotpath.shared import (
    BLOCK_GRANULARITY,
    LARGEST_REQUEST_NBYTES,
    BlockState,
    HotArena,
    Watch,
)
from madl.sizes import align_up

MOST_SIZES_REMEMBERED = 1 << 16

active_watches = 0
"""How many ``with madl.tag(...)`` and ``madl.record(...)`` are active anywhere."""


def change_watch_count(by: int) -> None:
    """Tell every pool that a tag or a recording has become active, or has ended."""
    global active_watches  # read on every allocation, where a look-up would cost more
    active_watches += by


class HotPool(LostBlocks, Unbinning, Wiping, PoolDuties):
    """Bins in front of the arenas' indexes, and what every allocation counts.

    ``Pool`` adds everything that is not hot: growing, trimming, limits, statistics.
    """

    # What every allocation reads and writes: slots are faster than a large dict.
    __slots__ = ("__dict__", "__weakref__", "_bins_by_request")

    def __init__(self) -> None:
        super().__init__()
        # Arenas of small blocks, and of large ones, where a pool tells them apart.
        self._bands: tuple[list[HotArena], list[HotArena]] = ([], [])
        self._small_nbytes = sys.maxsize
        self._most_nbytes = LARGEST_REQUEST_NBYTES  # or the limit: more is refused
        self._bins: dict[int, list[Block]] = {}
        self._filled_large_bins: dict[int, LargeBin] = {}
        # The same lists by the size asked for, so that a hit need not round, each
        # with what such an allocation adds to the account, and its free.
        self._bins_by_request: dict[int, tuple[list[Block], int, int]] = {}
        self._most_bins = MOST_SIZES_REMEMBERED
        # By arena and offset: the streams, besides its own, that use a block.
        self._users: dict[tuple[HotArena, int], list[Any]] = {}
        self._placed: set[Block] = set()
        self._lock = threading.Lock()
        self._lock_holder = self._miss_count = 0
        self._leash_nbytes = 0
        self._account = Account()
        self._stream_number = 0  # as recordings know it; lanes count 1, 2, ...

    @has_block_in_hand
    def allocate(
        self,
        nbytes: int | str,
        *,
        alignment: int | None = None,
        stream: object = None,
        tag: str | None = None,
    ) -> Memory:
        """Return memory of at least ``nbytes`` bytes; its content is undefined.

        Args:
            nbytes: Bytes, or a text such as ``"64 MiB"``. Zero is allowed.
            alignment: Bytes, a power of two. The device's own at least (512).
            stream: The stream whose work uses it, on stream-ordered devices.
            tag: A label that statistics, reports and traces show.

        Raises:
            OutOfMemoryError: It does not fit the limit or the device. The report in
                the error says why; accounting is unchanged and the pool usable.
            TypeError, ValueError, OverflowError: ``nbytes`` is no byte count.
            MissingCapabilityError: The device cannot honour an option.

        Complexity: O(1) when a block of the same rounded size was freed lately, else
        O(log n) in the pool's free blocks. Thread-safe.
        """
        if (
            nbytes.__class__ is not int
            or alignment is not None
            or stream is not None
            or tag is not None
            or active_watches
        ):
            return self._allocate_with(nbytes, alignment, stream, tag)
        # The handle first: once there is a block, nothing may be called.
        memory = make_memory()
        try:
            home, charge, refund = self._bins_by_request[nbytes]
            block = home.pop()
        except (KeyError, IndexError):
            return self._allocate_missing(nbytes)
        except BaseException:  # a signal handler's, and the block may be in no bin
            self._account.was_interrupted = True
            raise
        account = self._account
        account.total = total = account.total + charge
        if total > account.highest:
            account.highest = total
        block.nbytes = nbytes
        block.refund = refund
        memory._block = block
        memory._root = None
        memory._nbytes = nbytes
        memory._pool = self
        return memory

    def _allocate_missing(self, nbytes: int) -> Memory:
        """Allocate a size whose bin is empty."""
        placed_before = self._account.placed_count
        try:
            return self._hand_out(self._miss(nbytes), nbytes, None)
        except BaseException:
            self._return_since(placed_before)
            raise

    def _hand_out(self, block: Block, nbytes: int, watch: Watch | None) -> Memory:
        """Count a block as live and make its handle."""
        memory = self._handle(None, None, nbytes)
        block.watch = watch
        self._count_live(block, nbytes)
        memory._block = block
        return memory

    def _count_live(self, block: Block, nbytes: int) -> None:
        charge, refund = charges(nbytes, block.capacity)
        account = self._account
        account.total = total = account.total + charge
        if total > account.highest:
            account.highest = total
        block.nbytes = nbytes
        block.refund = refund
        block.taken = None

    def _slice_of(self, root: object, nbytes: int) -> Memory:
        """Return a handle without a block, whose root is what it was cut from."""
        return self._handle(None, root, nbytes)

    def _handle(self, block: Block | None, root: object, nbytes: int) -> Memory:
        memory = make_memory()
        memory._block, memory._root = block, root
        memory._nbytes, memory._pool = nbytes, self
        return memory

    def _miss(self, nbytes: int) -> Block:
        """Return a block for a size whose bin is empty; it counts as binned still."""
        capacity = align_up(nbytes, BLOCK_GRANULARITY)
        if nbytes == 0:
            return Block(None, 0, 0, NOWHERE)
        block: Block | None = None
        ident = threading.get_ident()
        if nbytes < 0 or locks_held.get(ident, 0):
            block = self._place_apart(nbytes)
        elif nbytes <= self._most_nbytes:
            head = self if self._joined is None else self._joined
            with self._lock:
                head._lock_holder = ident  # a lane's own calls a setter
                locks_held[ident] = 1
                try:
                    if not self._account.was_interrupted:  # that is put right first
                        block = self._place(nbytes, capacity)
                except BaseException:  # a signal handler's
                    self._account.was_interrupted = True
                    raise
                finally:
                    locks_held[ident] = 0
                    head._lock_holder = 0
        if block is None:
            block = self._place_slowly(nbytes, capacity, 0)
        if self._zeroes_new:
            self._zero_new(block)
        return block

    def _place(self, nbytes: int, capacity: int) -> Block | None:
        """Take a block from its bin, or from where no page is missing."""
        home = self._bin(capacity)
        if len(self._bins_by_request) >= MOST_SIZES_REMEMBERED:
            self._bins_by_request.clear()
        self._bins_by_request[nbytes] = (home, *charges(nbytes, capacity))
        try:
            return self._take(home.pop())
        except IndexError:
            self._miss_count += 1
        self._take_back_returned()
        while self._filled_large_bins:
            self._flush_bin(self._filled_large_bins.popitem()[1])
        if self._account.binned_nbytes > self._leash_nbytes:
            self._flush()
        for arena in self._bands[capacity > self._small_nbytes]:
            offset = arena.blocks.allocate(capacity)
            if offset >= 0:
                return self._block_at(arena, offset, capacity, is_binned=True)
        return None

    def _bin(self, capacity: int) -> list[Block]:
        home = self._bins.get(capacity)
        if home is None:
            if len(self._bins) >= self._most_bins:
                self._drop_unused_bins()
            is_large = capacity > self._small_nbytes
            home = LargeBin(capacity, self._filled_large_bins) if is_large else []
            self._bins[capacity] = home
        return home

    def _drop_unused_bins(self) -> None:
        """Forget the sizes that no block has any more."""
        used = {block.capacity for block in list(self._placed)}
        self._bins = {size: home for size, home in self._bins.items() if size in used}
        self._bins_by_request.clear()
        self._most_bins = max(MOST_SIZES_REMEMBERED, 2 * len(self._bins))

    def _block_at(
        self, arena: HotArena, offset: int, capacity: int, *, is_binned: bool
    ) -> Block:
        """Return the block for a place that was taken; its free goes to its bin."""
        is_binned = is_binned and self._has_bins
        home = self._bin(capacity) if is_binned else self._unbinned
        block = Block(arena, offset, capacity, home)
        self._placed.add(block)
        self._account.add_binned(capacity)
        return self._take(block)

    def _block_states(self) -> list[BlockState]:
        """Return every placed block, live or free in a bin."""
        return [
            BlockState(
                block.arena,
                block.offset,
                block.capacity,
                block.refund != 0,
                block.nbytes,
                block.watch.tag if block.watch is not None else None,
                block.watch.stack if block.watch is not None else (),
            )
            for block in list(self._placed)
            if block.arena is not None
        ]

    def _flush(self) -> None:
        """Give all binned blocks back to the index, where they coalesce."""
        for home in filter(None, self._bins.values()):
            self._flush_bin(home)

    def _flush_bin(self, home: list[Block]) -> None:
        while home:
            try:
                block = home.pop()
            except IndexError:  # another thread took the last one
                return
            self._unplace(block)

    @property
    def _bin_count(self) -> int:
        """Bins there are, empty ones too."""
        return len(self._bins)

    def _has_returned(self) -> bool:
        """Whether blocks wait that belong to no bin."""
        return bool(self._returned)

    def _take_back_returned(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            if self._users or self._wipes_later:
                assert block.arena is not None, "blocks without bytes are never placed"
                self._unplace_when_unused(block, block.arena, block.offset)
            else:
                self._unplace(block)

    def _unplace(self, block: Block) -> None:
        self._account.add_binned(-block.capacity)
        self._placed.discard(block)
        self._give_back(block)

    def _give_back(self, block: Block) -> None:
        """Give a block's place back to the index, or to the device."""
        arena = block.arena
        assert arena is not None, "blocks without bytes are never placed"
        arena.blocks.free(block.offset, block.capacity)
        if arena.is_apart:
            self._release_apart(arena)
