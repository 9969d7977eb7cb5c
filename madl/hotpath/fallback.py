"""The hot path in plain Python, for where nothing compiles: handles, bins, pools.

An allocation takes the pool's lock. A free takes none, since it may run in a finalizer
while its own thread holds the lock: it leaves the block on a deque, which the next
allocation sorts into bins. What changes together is a few stores without a call, so no
thread and no handler comes between; without an interpreter lock, within ``counting``.
"""

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Self

from madl.backends.protocol import Capability
from madl.hotpath.reentrancy import counting, locks_held
from madl.hotpath.shared import (
    BLOCK_GRANULARITY,
    LARGEST_REQUEST_NBYTES,
    Allocating,
    BlockState,
    Handle,
    HotArena,
    SlowPath,
    Watch,
    special,
)

_MOST_BINS = 1 << 16
_IN_FREE = 0, 0  # what a block is taken by between its end and its list

_active_watches = 0  # global, since it is read on every allocation


def set_watch_count(count: int) -> None:
    global _active_watches
    _active_watches = count


class Block:
    """A part of an arena that is live, or free in a bin. One object for both lives."""

    __slots__ = (
        "arena",
        "capacity",
        "is_binned",  # a free puts it into its bin
        "is_live",
        "is_wiped",  # the host sets it to zero before others may have it
        "nbytes",
        "offset",
        "taken",  # while in flight: the thread that has it, and its number; or None
        "watch",
    )

    def __init__(self, capacity: int) -> None:
        self.arena: HotArena | None = None
        self.capacity = capacity
        self.offset = self.nbytes = 0
        self.is_binned = self.is_live = self.is_wiped = False
        self.taken: tuple[int, int] | None = None
        self.watch: Watch | None = None


Lane = SlowPath["HotPool", Block, "Memory"]


class Memory(Handle):
    __slots__ = ("_block", "_nbytes", "_pool", "_root")

    _block: Block | None
    _nbytes: int
    _pool: "HotPool"
    _root: Any  # None, a Root, or what a slice was cut from

    def __init__(self) -> None:
        raise TypeError("a Memory is made by Pool.allocate or madl.allocate")

    def free(self) -> None:
        block = self._block
        try:
            if block is None or not _end(self, block):
                block = None
                raise special["refuse_free"](self)
        finally:
            if block is not None:
                _finish(self._pool, block, is_dropped=False)

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        # All globals are None at the interpreter's exit.
        if block is None or self._root is not None or _end is None:
            return
        try:
            _end(self, block)
        finally:
            _finish(self._pool, block, is_dropped=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._block is not None:
            self.free()

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self._nbytes


def _end(memory: Memory, block: Block) -> bool:
    """Take a block from its handle, and count it as free unless a root keeps it."""
    bins = memory._pool._bins
    with counting:
        # No call but the last, so that no handler and no thread comes between these.
        root = memory._root
        if memory._block is not block:
            return False  # another thread was faster
        memory._block = memory._root = None
        if root is not None:
            if block.watch is not None:
                block.watch.is_viewed = True
            return True
        bins.shared.live_nbytes -= block.nbytes
        bins.shared.binned_nbytes += block.capacity
        block.is_live = False
        if block.watch is not None or block.is_wiped:
            block.taken = _IN_FREE  # recovery leaves it to _finish
        elif block.arena is not None:
            (bins.freed if block.is_binned else bins.returned).append(block)
    return True


def _finish(pool: "HotPool", block: Block, *, is_dropped: bool) -> None:
    """Tell the watch of a free and wipe the block; then others may have it."""
    try:
        if block.taken is _IN_FREE:
            watch, block.watch = block.watch, None
            if watch is not None:
                (watch.dropped if is_dropped else watch.freed)()
    finally:
        _return(pool, block)


def _return(pool: "HotPool", block: Block) -> None:
    bins = pool._bins
    if block.taken is _IN_FREE:
        block.watch = None
        if block.is_wiped:
            address = block.arena.address + block.offset  # type: ignore[union-attr, operator]  # of host memory
            ctypes.memset(address, 0, block.capacity)
        with counting:
            # Again: close() gives back those whose free was interrupted. No call here.
            if block.taken is _IN_FREE:
                block.taken = None
                if block.arena is not None:
                    (bins.freed if block.is_binned else bins.returned).append(block)
    if bins.returns_every_free:
        pool._lane.freed_after_close()


class Root(ctypes.c_ubyte * sys.maxsize):  # type: ignore[misc]  # one type for all sizes: ctypes keeps each for ever
    """The end of every view's chain of owners; it keeps the block until it ends."""

    keeper: Memory
    address: int
    nbytes: int
    # An attribute, since signal handlers run after a call of a function.
    references = property(sys.getrefcount)

    @classmethod
    def over(cls, address: int, nbytes: int) -> Self:
        root = cls.from_address(address)
        root.address, root.nbytes = address, nbytes
        # Let it end with its last view only: the collector ends the objects of a cycle
        # in any order, while those that it has not come to yet may use a view.
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(root))
        return root

    def view(self) -> memoryview:
        return memoryview(self)[: self.nbytes].cast("B")


def _references_without_views() -> int:
    """Return what a look at a root holds itself: each Python's own business."""
    keeper = SimpleNamespace(_root=Root.over(0, 0))
    return keeper._root.references


_WITHOUT_VIEWS = _references_without_views()


def is_viewed(memory: Memory) -> bool:
    return memory._root is not None and memory._root.references > _WITHOUT_VIEWS


def keep_by(memory: Memory, root: Root) -> Root | None:
    keeper = root.keeper = slice_of(memory._pool, None, memory._nbytes)
    address, nbytes = root.address, root.nbytes
    with counting:
        block = memory._block
        if block is None:
            return None
        if nbytes:
            arena = block.arena
            if nbytes != memory._nbytes or arena is None or arena.address is None:
                return None
            if arena.address + block.offset != address:
                return None
        if memory._root is None:
            keeper._block = block
            memory._root = root
        return memory._root


def _detach(memory: Memory) -> bool:
    if memory._root is None:
        return True
    keeper = memory._root.keeper
    # Out of other threads' reach while it is counted. In no variable: those of a frame
    # that is traced are counted too.
    keeper._root, memory._root = memory._root, None
    if keeper._root.references > _WITHOUT_VIEWS:
        memory._root, keeper._root = keeper._root, None
        return False
    keeper._block = keeper._root = None
    return True


def detach(memory: Memory) -> bool:
    with counting:
        return _detach(memory)


def exchange(
    memory: Memory, other: Memory, arena: HotArena | None, offset: int
) -> bool:
    with counting:
        if not (_detach(other) and _detach(memory)):
            return False
        # No call from here on, so that no signal handler comes between.
        block = memory._block
        if block is None or memory._root is not None or other._root is not None:
            return False
        if block.arena is not arena or block.offset != offset:
            return False
        memory._block, other._block = other._block, block
        memory._pool, other._pool = other._pool, memory._pool  # a lane may be merged
        memory._nbytes, other._nbytes = other._nbytes, memory._nbytes
        return True


pool_of: "Callable[[Memory], HotPool]" = attrgetter("_pool")
root_of: Callable[[Memory], Any] = attrgetter("_root")


def place_of(memory: Memory) -> tuple[HotArena | None, int, int] | None:
    block = memory._block
    return None if block is None else (block.arena, block.offset, block.capacity)


def watch_of(memory: Memory) -> Watch | None:
    return None if memory._block is None else memory._block.watch


def unbin(memory: Memory) -> None:
    if memory._block is not None:
        memory._block.is_binned = False


def attach(methods: dict[str, object]) -> None:
    for name, method in methods.items():
        setattr(Memory, name, method)


class Shared:
    """What a pool and its lanes share: the lock, and all that is counted."""

    def __init__(self) -> None:
        self.binned_nbytes = self.live_nbytes = self.live_high_water = 0
        self.allocation_count = self.placed_count = 0
        self.was_interrupted = False
        self.renew_lock()

    def renew_lock(self) -> None:
        self.lock = threading.Lock()
        self.lock_holder = 0

    def recount(self, states: Callable[[], list[BlockState]]) -> bool:
        for _ in range(20):  # other threads may allocate and free
            before = self.live_nbytes, self.binned_nbytes, self.allocation_count
            found = states()
            live = sum(state.nbytes for state in found if state.is_live)
            binned = sum(state.capacity for state in found if not state.is_live)
            with counting:
                now = self.live_nbytes, self.binned_nbytes, self.allocation_count
                if now == before:
                    self.live_nbytes, self.binned_nbytes = live, binned
                    return True
        return False


class Bins:
    """The blocks of one lane: in bins by capacity, returned, or live."""

    def __init__(self) -> None:
        self.shared = Shared()
        self.bands: tuple[list[HotArena], list[HotArena]] = ([], [])
        self.small_nbytes = sys.maxsize
        self.most_nbytes = LARGEST_REQUEST_NBYTES
        self.users: dict[tuple[HotArena, int], list[Any]] = {}
        self.stream_number = self.leash_nbytes = self.miss_count = 0
        self.freed: deque[Block] = deque()  # since the last allocation, for their bins
        self.returned: deque[Block] = deque()  # freed, and for no bin
        self.returns_every_free = False
        self._bins: dict[int, list[Block]] = {}
        self._filled: tuple[dict[int, list[Block]], ...] = ({}, {})  # small, large
        self._placed: set[Block] = set()
        self._most_bins = _MOST_BINS
        self._has_bins = True
        self._zeroes_new = self._wipes_freed = self._asks = False

    def join(self, other: "Bins") -> None:
        self.shared = other.shared

    def pass_by(self, *, zeroes_new: bool, wipes_freed: bool, asks: bool) -> None:
        self._has_bins, self._asks = False, asks
        self._zeroes_new, self._wipes_freed = zeroes_new, wipes_freed

    def find(self, nbytes: int, lane: Lane) -> Block:
        capacity = -(-nbytes // BLOCK_GRANULARITY) * BLOCK_GRANULARITY
        ident = threading.get_ident()
        if nbytes == 0:
            return self.reserve_block(0)
        block: Block | None = None
        if locks_held.get(ident):
            block = lane.place_dedicated(nbytes)
        else:
            shared = self.shared
            with shared.lock:
                # No call before the lock is noted as held: see PoolLock.
                shared.lock_holder = ident
                locks_held[ident] = 1
                try:
                    if not shared.was_interrupted:  # else the slow path recovers first
                        block = self._find_locked(capacity, ident, lane)
                except BaseException:  # a signal handler's
                    shared.was_interrupted = True
                    raise
                finally:
                    locks_held[ident] = 0
                    shared.lock_holder = 0
            if block is None:
                block = lane.place_slowly(nbytes, capacity, 0)
        assert block is not None, "the slow path places a block or raises"
        if self._zeroes_new:
            lane.zero_new(block)
        return block

    def _find_locked(self, capacity: int, ident: int, lane: Lane) -> Block | None:
        self._sort_freed()
        home = self._bins.get(capacity)
        if home:
            block = home[-1]
            # In flight before it leaves its bin, and no call between the two.
            self.shared.placed_count += 1
            block.taken = ident, self.shared.placed_count
            del home[-1]
            return block
        self.miss_count += 1
        while returned := self.take_back_returned():
            lane.take_back(returned)
        self._flush(self._filled[1])
        if self.shared.binned_nbytes > self.leash_nbytes:
            self._flush(self._filled[0])
        for arena in self.bands[capacity > self.small_nbytes]:
            offset = arena.blocks.allocate(capacity)
            if offset >= 0:
                return self.place_reserved(self.reserve_block(capacity), arena, offset)
        return None

    def reserve_block(self, capacity: int) -> Block:
        block, ident = Block(capacity), threading.get_ident()
        with counting:
            self.shared.placed_count += 1
            block.taken = ident, self.shared.placed_count
            return block

    def place_reserved(
        self, block: Block, arena: HotArena, offset: int, *, is_binned: bool = True
    ) -> Block:
        block.arena, block.offset = arena, offset
        block.is_binned = is_binned and self._has_bins
        block.is_wiped = self._wipes_freed
        with counting:
            self.shared.binned_nbytes += block.capacity
            self._placed.add(block)
            return block

    def drop_reserved(self, _: Block) -> None: ...

    def place_of(self, block: Block) -> tuple[HotArena, int, int] | None:
        return (block.arena, block.offset, block.capacity) if block.arena else None

    def _sort_freed(self) -> None:
        while self.freed:
            block = self.freed.popleft()
            if not block.is_binned:  # a stream's, since it was freed
                self.returned.append(block)
                continue
            home = self._bin(block.capacity)
            is_large = block.capacity > self.small_nbytes
            # The lower of the two large blocks freed last on top: high pages stay idle.
            if is_large and home and home[-1].offset < block.offset:
                home.insert(-1, block)
            else:
                home.append(block)
            self._filled[is_large][block.capacity] = home

    def _bin(self, capacity: int) -> list[Block]:
        home = self._bins.get(capacity)
        if home is None:
            if len(self._bins) >= self._most_bins:
                used = {block.capacity for block in list(self._placed)}
                self._bins = {n: one for n, one in self._bins.items() if n in used}
                self._most_bins = max(_MOST_BINS, 2 * len(self._bins))
            home = self._bins[capacity] = []
        return home

    @property
    def bin_count(self) -> int:
        return len(self._bins)

    @property
    def has_returned(self) -> bool:
        return bool(self.returned)

    def flush(self) -> None:
        self._sort_freed()
        for filled in self._filled:
            self._flush(filled)

    def _flush(self, filled: dict[int, list[Block]]) -> None:
        for capacity, home in list(filled.items()):
            while home:
                self.unplace(home.pop())
            del filled[capacity]

    def take_back_returned(self) -> Block | None:
        self._sort_freed()
        while self.returned:
            block = self.returned.popleft()
            assert block.arena is not None, "blocks without bytes are never placed"
            if self.users or self._asks or block.arena.is_dedicated:
                return block
            self.unplace(block)
        return None

    def unplace(self, block: Block) -> HotArena | None:
        arena, shared = block.arena, self.shared
        assert arena is not None, "blocks without bytes are never placed"
        with counting:
            shared.binned_nbytes -= block.capacity
            self._placed.discard(block)
        arena.blocks.free(block.offset, block.capacity)
        return arena if arena.is_dedicated else None

    def return_since(self, placed_before: int) -> None:
        if self.shared.placed_count == placed_before:
            return
        ident = threading.get_ident()
        for block in list(self._placed):
            thread, number = block.taken or (0, 0)
            if thread == ident and number > placed_before:
                block.taken = None
                self.returned.append(block)

    def gather_lost(self) -> bool:
        # The free ones before the lists: what is freed after this look is in a list.
        free = [b for b in list(self._placed) if not (b.is_live or b.taken)]
        listed = {*self.returned.copy(), *self.freed.copy()}
        listed.update(block for home in self._bins.values() for block in home)
        for block in free:
            if block not in listed:
                block.watch = None
                self.returned.append(block)
        return True

    def keep_contents(self) -> None:
        self._wipes_freed = False
        for block in list(self._placed):
            block.is_wiped = False

    def unbin_all(self) -> None:
        for block in list(self._placed):
            block.is_binned = False

    def return_every_free(self) -> None:
        self.returns_every_free = True
        self.unbin_all()
        for block in list(self._placed):  # those whose free was interrupted
            if block.taken is _IN_FREE and not block.is_wiped:
                block.watch = block.taken = None
                self.returned.append(block)

    def states(self) -> list[BlockState]:
        return [
            BlockState(arena, b.offset, b.capacity, is_live, nbytes, *told)
            for b in list(self._placed)
            for arena, watch, is_live, nbytes in [
                (b.arena, b.watch, b.is_live, b.nbytes)
            ]
            for told in [(watch.tag, watch.stack) if watch else (None, ())]
            if arena is not None
        ]


class HotPool(Allocating):
    """Bins, and the slow path behind them. ``Pool`` adds all that is not hot."""

    __slots__ = ("__dict__", "__weakref__", "_bins", "_head", "_lane")

    device: str
    capabilities: Capability
    _bins: Bins

    def __new__(cls, *_: object, **__: object) -> Self:
        made = super().__new__(cls)
        made._bins = Bins()
        return made

    def __init__(
        self,
        lane: Lane,
        lanes_seen: dict[object, "HotPool | None"],
        head: "HotPool | None" = None,
    ) -> None:
        del lanes_seen  # only the compiled body looks lanes up by itself
        self._lane, self._head = lane, head

    def allocate(
        self,
        nbytes: int | str,
        *,
        alignment: int | None = None,
        stream: object = None,
        tag: str | None = None,
    ) -> Memory:
        bins = self._bins
        if (
            nbytes.__class__ is not int
            or not 0 < nbytes <= bins.most_nbytes
            or alignment is not None
            or stream is not None
            or tag is not None
            or _active_watches
        ):
            return self._lane.allocate_with(self, nbytes, alignment, stream, tag)
        placed_before = bins.shared.placed_count
        try:
            return hand_out(self, bins.find(nbytes, self._lane), nbytes, None)
        except BaseException:
            bins.return_since(placed_before)
            raise


def slice_of(pool: HotPool, root: object, nbytes: int) -> Memory:
    memory = Memory.__new__(Memory)
    memory._block, memory._root = None, root
    memory._nbytes, memory._pool = nbytes, pool
    return memory


def hand_out(pool: HotPool, block: Block, nbytes: int, watch: Watch | None) -> Memory:
    memory = slice_of(pool, None, nbytes)
    shared = pool._bins.shared
    with counting:
        block.nbytes, block.watch = nbytes, watch
        block.is_live, block.taken = True, None
        shared.binned_nbytes -= block.capacity
        shared.allocation_count += 1
        shared.live_nbytes += nbytes
        if shared.live_nbytes > shared.live_high_water:
            shared.live_high_water = shared.live_nbytes
        memory._block = block
    return memory


Memory.__doc__, Memory.free.__doc__ = Handle.__doc__, Handle.free.__doc__
HotPool.allocate.__doc__ = Allocating.allocate.__doc__

bins_of: Callable[[HotPool], Bins] = attrgetter("_bins")
lane_of: Callable[[HotPool], Lane] = attrgetter("_lane")


def head_of(pool: HotPool) -> HotPool:
    return pool if pool._head is None else pool._head
