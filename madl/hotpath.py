"""The way of an allocation that finds what it needs: bins, counters, the handle.

This is the interpreted body; ``_hotpath.pyx`` is the compiled one. Both have the same
names and pass the same tests. A free only puts the block on a list: bins are lists,
and ``append`` and ``pop`` are atomic, so no lock is taken and a finalizer may run at
any point. All that changes the index waits for an allocation that misses.
"""

import builtins
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from madl.backends.protocol import Capability
from madl.core.first_fit import FirstFit

BLOCK_GRANULARITY = 512
"""Capacities and offsets of blocks are multiples of it: the alignment that CUDA
promises, so that the same program has the same offsets on every device."""

MOST_SIZES_REMEMBERED = 1 << 16

watch_count = 0
"""How many ``with madl.tag(...)`` and ``madl.record(...)`` are active anywhere."""

_cold: dict[str, Callable[..., Any]] = {}


def register_cold(functions: dict[str, Callable[..., Any]]) -> None:
    """Give ``Memory`` the functions behind its methods that are not hot."""
    _cold.update(functions)


def change_watch_count(by: int) -> None:
    """Tell every pool that a tag or a recording has become active, or has ended."""
    global watch_count  # read on every allocation: a local costs more
    watch_count += by


class HotArena:
    """What the hot path knows of an arena."""

    def __init__(
        self, blocks: FirstFit, address: int | None, *, is_apart: bool
    ) -> None:
        self.blocks = blocks
        self.address = address
        self.is_apart = is_apart  # holds one block, placed outside the pool's order


class Watch:
    """Whoever wants to know of a block's free: a tag's usage, a recording."""

    tag: str | None = None

    def freed(self) -> None:
        """Take note. Runs in finalizers: no lock, no pool, nothing that raises."""


class BlockState(NamedTuple):
    """A placed block, as statistics and snapshots see it."""

    arena: HotArena
    offset: int
    capacity: int
    is_live: bool
    nbytes: int
    tag: str | None


class Block:
    """A part of an arena that is live, or free in a bin. One object for both lives."""

    __slots__ = ("arena", "capacity", "home", "nbytes", "offset", "watch")

    def __init__(
        self, arena: HotArena | None, offset: int, capacity: int, home: "Home"
    ) -> None:
        self.arena = arena
        self.offset = offset
        self.capacity = capacity
        self.home = home  # where a free puts it: its bin, or the pool's returned list
        self.nbytes = 0
        self.watch: Watch | None = None


class Home(Protocol):
    """What a freed block is appended to."""

    def append(self, block: Block, /) -> None:
        """Take the block. Runs in finalizers."""


_NOWHERE: Home = deque(maxlen=0)
"""The home of blocks without bytes: there is nothing to give back."""


class Memory:
    """A piece of device memory, held until ``free()`` or until it is dropped.

    Made by ``Pool.allocate`` and ``madl.allocate``. Every method raises
    ``FreedMemoryError`` after ``free()``. A handle may be passed between threads; two
    threads must not free, resize or write the same one at once.
    """

    __slots__ = ("_block", "_nbytes", "_pool", "_root")

    _pool: "HotPool"
    _block: Block | None
    _nbytes: int
    # None, or what keeps the block for views and slices: see memory.py.
    _root: Any

    def free(self) -> None:
        """Give the memory back to its pool.

        The next ``allocate`` can hand the block out again, so nothing may read or
        write it any more. While arrays or memoryviews of it live, the handle is dead
        at once and the block goes back with the last of them.

        Raises:
            FreedMemoryError: It was freed before.
            ValueError: It is a slice; free the memory that it was cut from.

        Complexity: O(1). Thread-safe; takes no lock and never calls the device.
        """
        block = self._block
        if block is None:
            raise _cold["refuse_free"](self)
        self._block = None
        if self._root is not None:
            self._root = None
            return
        pool = self._pool
        pool._live_nbytes -= self._nbytes
        pool._binned_nbytes += block.capacity
        if block.watch is not None:
            block.watch.freed()
            block.watch = None
        block.home.append(block)

    def __del__(self) -> None:
        block = self._block
        if block is not None and self._root is None:
            pool = self._pool
            pool._live_nbytes -= self._nbytes
            pool._binned_nbytes += block.capacity
            if block.watch is not None:
                block.watch.freed()
                block.watch = None
            block.home.append(block)

    def _place(self) -> tuple[HotArena | None, int, int] | None:
        """Return arena, offset and capacity; ``None`` when it has no block."""
        block = self._block
        return None if block is None else (block.arena, block.offset, block.capacity)

    def _watch(self) -> Watch | None:
        return None if self._block is None else self._block.watch

    def _keeper(self) -> "Memory":
        """Return a second handle of the block, for a root to hold.

        A handle with a root leaves its block alone, so the keeper alone frees it.
        """
        keeper = Memory.__new__(Memory)
        keeper._pool = self._pool
        keeper._nbytes = self._nbytes
        keeper._root = None
        keeper._block = self._block
        return keeper

    def _forget_block(self) -> None:
        """Keep the block no longer, without freeing it."""
        self._block = None

    def _exchange(self, other: "Memory") -> None:
        """Swap blocks and sizes with another handle of the same pool."""
        self._block, other._block = other._block, self._block
        self._nbytes, other._nbytes = other._nbytes, self._nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._block is not None:
            self.free()

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self._nbytes

    @property
    def pool(self) -> "HotPool":
        """The pool that the memory came from."""
        return self._pool

    @property
    def capacity(self) -> int:
        """Bytes given: ``nbytes`` rounded up to the pool's granularity."""
        return _cold["capacity"](self)

    @property
    def address(self) -> int:
        """Where the memory starts; 0 for zero bytes. Not covered by ``free``.

        Raises:
            MissingCapabilityError: The device has no addresses.
        """
        return _cold["address"](self)

    @property
    def native(self) -> object:
        """What the device's own API calls this memory: an address, a ``cl_mem``."""
        return _cold["native"](self)

    @property
    def device(self) -> str:
        """The device's name, as in ``"cpu"``."""
        return _cold["device"](self)

    @property
    def tag(self) -> str | None:
        """The tag that the memory was allocated under."""
        return _cold["tag"](self)

    @property
    def stream(self) -> object:
        """The stream that owns the memory; ``None`` on devices without streams."""
        return _cold["stream"](self)

    @property
    def is_freed(self) -> bool:
        """Whether ``free()`` has been called, on it or on what it was cut from."""
        return _cold["is_freed"](self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return _cold["array_interface"](self)

    def as_array(self, dtype: Any = "uint8", shape: Any = None) -> Any:  # noqa: ANN401  # NumPy is not imported here
        """Return a NumPy array over the memory, without a copy.

        Args:
            dtype: Anything ``numpy.dtype`` accepts.
            shape: An int or a tuple; all of the memory as one dimension when None.

        Returns:
            A writable, C-contiguous ``numpy.ndarray``. The block stays live until the
            array and all arrays made from it are gone, whatever is freed before.

        Raises:
            ValueError: The array would be larger than the memory.
            MissingCapabilityError: The CPU cannot reach the device's memory.
        """
        return _cold["as_array"](self, dtype, shape)

    def memoryview(self) -> builtins.memoryview:
        """Return a writable view of the bytes; it keeps the block live."""
        return _cold["memoryview"](self)

    def __buffer__(self, flags: int) -> builtins.memoryview:
        return _cold["memoryview"](self)

    def tobytes(self) -> bytes:
        """Return a copy of the content."""
        return _cold["tobytes"](self)

    def __len__(self) -> int:
        return self._nbytes

    def __getitem__(self, part: slice) -> "Memory":
        return _cold["cut"](self, part)

    def copy_from(self, source: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
        """Copy the bytes of ``source`` to the start of this memory.

        Args:
            source: A ``Memory``, or anything with a C-contiguous buffer.
            stream: Where the copy is queued. Without one it is complete on return.

        Raises:
            ValueError: ``source`` is larger. Nothing is copied.
            NotContiguousError: ``source`` has gaps.
        """
        _cold["copy_from"](self, source, stream)

    def copy_to(self, destination: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
        """Copy all bytes to the start of ``destination``, as ``copy_from`` does."""
        _cold["copy_to"](self, destination, stream)

    def fill(self, value: int = 0) -> None:
        """Set every byte to ``value``, 0 to 255."""
        _cold["fill"](self, value)

    def resize(self, nbytes: int | str) -> None:
        """Change ``nbytes``; the content up to the smaller size stays.

        The memory may move. Nothing changes on failure.

        Raises:
            ValueError: It is a slice, or views of it live.
            OutOfMemoryError: As for ``allocate``.
        """
        _cold["resize"](self, nbytes)

    def record_stream(self, stream: object) -> None:
        """Say that queued work of another stream uses the memory.

        Raises:
            MissingCapabilityError: The device is not stream-ordered.
        """
        _cold["record_stream"](self, stream)

    def __reduce_ex__(self, protocol: object) -> Any:  # noqa: ANN401  # it only raises
        raise _cold["refuse_pickle"](self)

    def __repr__(self) -> str:
        return _cold["repr"](self)


class HotPool:
    """Bins in front of the arenas' indexes, and what every allocation counts.

    ``Pool`` adds everything that is not hot: growing, trimming, limits, statistics.
    """

    device: str
    capabilities: Capability

    def __init__(self) -> None:
        self._arenas: list[HotArena] = []
        self._bins: dict[int, list[Block]] = {}
        # The same lists by the size asked for, so that a hit need not round.
        self._bins_by_request: dict[int, list[Block]] = {}
        self._returned: deque[Block] = deque()
        self._placed: set[Block] = set()
        self._lock = threading.Lock()
        self._lock_holder = 0
        self._leash_nbytes = 0
        self._binned_nbytes = 0
        self._live_nbytes = 0
        self._live_high_water = 0
        self._allocation_count = 0
        self._miss_count = 0

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
            or watch_count
        ):
            return self._allocate_with(nbytes, alignment, stream, tag)
        try:
            block = self._bins_by_request[nbytes].pop()
        except (KeyError, IndexError):
            block = self._miss(nbytes)
        self._binned_nbytes -= block.capacity
        self._allocation_count += 1
        live_nbytes = self._live_nbytes + nbytes
        self._live_nbytes = live_nbytes
        if live_nbytes > self._live_high_water:
            self._live_high_water = live_nbytes
        block.nbytes = nbytes
        memory = Memory.__new__(Memory)
        memory._block = block
        memory._root = None
        memory._nbytes = nbytes
        memory._pool = self
        return memory

    def _hand_out(self, block: Block, nbytes: int, watch: Watch | None) -> Memory:
        """Count a block as live and make its handle."""
        self._binned_nbytes -= block.capacity
        self._allocation_count += 1
        self._live_nbytes += nbytes
        self._live_high_water = max(self._live_high_water, self._live_nbytes)
        block.nbytes = nbytes
        block.watch = watch
        memory = Memory.__new__(Memory)
        memory._block = block
        memory._root = None
        memory._nbytes = nbytes
        memory._pool = self
        return memory

    def _slice_of(self, parent: Any, nbytes: int) -> Memory:  # noqa: ANN401  # memory.py's own type
        """Return a handle without a block, whose root is what it was cut from."""
        memory = Memory.__new__(Memory)
        memory._block = None
        memory._root = parent
        memory._nbytes = nbytes
        memory._pool = self
        return memory

    def _miss(self, nbytes: int) -> Block:
        """Return a block for a size whose bin is empty; it counts as binned still."""
        capacity = -(-nbytes // BLOCK_GRANULARITY) * BLOCK_GRANULARITY
        if nbytes <= 0 or self._lock_holder == threading.get_ident():
            if nbytes == 0:
                return Block(None, 0, 0, _NOWHERE)
            return self._place_apart(nbytes)
        with self._lock:
            self._lock_holder = threading.get_ident()
            try:
                block = self._place(nbytes, capacity)
            finally:
                self._lock_holder = 0
        return block if block is not None else self._place_slowly(nbytes, capacity, 0)

    def _place(self, nbytes: int, capacity: int) -> Block | None:
        """Take a block from its bin, or from where no page is missing."""
        self._miss_count += 1
        home = self._bins.setdefault(capacity, [])
        if len(self._bins_by_request) >= MOST_SIZES_REMEMBERED:
            self._bins_by_request.clear()
        self._bins_by_request[nbytes] = home
        try:
            return home.pop()
        except IndexError:
            pass  # as expected: the bin is empty for every size met before
        if self._returned:
            self._take_back_returned()
        if self._binned_nbytes > self._leash_nbytes:
            self._flush()
        for arena in self._arenas:
            offset = arena.blocks.allocate(capacity)
            if offset >= 0:
                return self._block_at(arena, offset, capacity, is_binned=True)
        return None

    def _block_at(
        self, arena: HotArena, offset: int, capacity: int, *, is_binned: bool
    ) -> Block:
        """Return the block for a place that was taken; its free goes to its bin."""
        home = self._bins.setdefault(capacity, []) if is_binned else self._returned
        block = Block(arena, offset, capacity, home)
        self._placed.add(block)
        self._binned_nbytes += capacity
        return block

    def _block_states(self) -> list[BlockState]:
        """Return every placed block, live or free in a bin."""
        free = {*self._returned, *(b for home in self._bins.values() for b in home)}
        return [
            BlockState(
                block.arena,
                block.offset,
                block.capacity,
                block not in free,
                block.nbytes,
                block.watch.tag if block.watch is not None else None,
            )
            for block in self._placed
            if block.arena is not None
        ]

    def _return_every_free(self) -> None:
        """Let no free go to a bin any more; ``_freed_after_close`` hears of each."""
        self._bins_by_request.clear()
        last_frees = _LastFrees(self)
        for block in self._placed:
            block.home = last_frees

    def _flush(self) -> None:
        """Give all binned blocks back to the index, where they coalesce."""
        for home in self._bins.values():
            while home:
                try:
                    block = home.pop()
                except IndexError:  # another thread took the last one
                    break
                self._unplace(block)

    def _take_back_returned(self) -> None:
        while self._returned:
            self._unplace(self._returned.popleft())

    def _unplace(self, block: Block) -> None:
        self._binned_nbytes -= block.capacity
        self._placed.discard(block)
        arena = block.arena
        assert arena is not None, "blocks without bytes are never placed"
        arena.blocks.free(block.offset, block.capacity)
        if arena.is_apart:
            self._release_apart(arena)

    @abstractmethod
    def _allocate_with(
        self,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> Memory:
        """Allocate where an argument needs more than a look at a bin."""

    @abstractmethod
    def _place_slowly(self, nbytes: int, capacity: int, alignment: int) -> Block:
        """Return a block where pages have to be found for it, or raise."""

    @abstractmethod
    def _place_apart(self, nbytes: int) -> Block:
        """Return a block in an arena of its own: for a call within a call."""

    @abstractmethod
    def _release_apart(self, arena: HotArena) -> None:
        """Give back an arena of one block, which is free."""

    @abstractmethod
    def _freed_after_close(self) -> None:
        """Give back what was freed since the pool was closed. Runs in finalizers."""


class _LastFrees:
    """The home of a closed pool's blocks: they go back to the device."""

    def __init__(self, pool: HotPool) -> None:
        self._pool = pool

    def append(self, block: Block) -> None:
        self._pool._returned.append(block)
        self._pool._freed_after_close()
