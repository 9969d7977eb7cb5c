"""``Memory`` and the bins in front of the arenas' indexes, compiled.

The twin of ``interpreted_memory`` and ``interpreted_pool``, with the same offsets to
the byte. While C code runs here it keeps the interpreter's lock and calls no Python,
so every function is one step to other threads, to finalizers and to signal handlers:
only what may call the device, or wait for somebody who does, takes the pool's lock.
Where there is no interpreter lock, a critical section on the pool stands in for it.
"""

import sys
import threading

cimport cython
from cpython.buffer cimport PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from madl.core.first_fit cimport FirstFit
from madl.core.skiplist cimport word

from madl.hotpath.shared import BlockState, cold

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define MADL_HAS_INTERPRETER_LOCK 0
    #else
    #define MADL_HAS_INTERPRETER_LOCK 1
    #endif
    """
    const bint MADL_HAS_INTERPRETER_LOCK
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1

cdef enum:
    GRANULARITY = 512
    # Offsets are multiples of GRANULARITY, so their low bits can tell a block's state.
    LIVE = 1
    UNBINNED = 2
    FLAGS = 511
    SLAB_LENGTH = 256

cdef word LARGEST_REQUEST = 1 << 62

cdef int active_watches = 0


def change_watch_count(int by):
    """Tell every pool that a tag or a recording has become active, or has ended."""
    global active_watches
    active_watches += by


cdef struct Block:
    # A part of an arena that is live, or free in a bin. 48 bytes.
    word offset_and_flags
    word nbytes
    Bin* bin  # of its capacity; NULL while the record is unused
    Block* next  # in its bin, in the returned list or among the unused
    PyObject* arena  # borrowed: the pool keeps an arena while a block lies in it
    PyObject* watch  # owned, or NULL

cdef struct Bin:
    # The free blocks of one capacity, the one to hand out next on top.
    word capacity
    Block* top
    Bin* next_filled
    Py_ssize_t placed  # blocks of this capacity, live ones included
    bint is_large
    bint is_listed  # among the filled ones: a bin may have been emptied since

cdef struct Slot:
    word capacity
    Bin* bin

cdef struct Slab:
    Slab* next
    Block blocks[SLAB_LENGTH]


cdef class HotArena:
    """What the hot path knows of an arena."""

    cdef readonly FirstFit blocks
    cdef readonly object address
    cdef readonly bint is_apart

    def __init__(self, FirstFit blocks, address, *, bint is_apart):
        self.blocks = blocks
        self.address = address
        self.is_apart = is_apart


@cython.final
@cython.freelist(512)
@cython.no_gc
cdef class Memory:
    """A piece of device memory, held until ``free()`` or until it is dropped.

    Made by ``Pool.allocate`` and ``madl.allocate``. Every method raises
    ``FreedMemoryError`` after ``free()``. A handle may be passed between threads; two
    threads must not free, resize or write the same one at once.
    """

    cdef HotPool owner
    cdef Block* block
    cdef word size
    cdef public object _root

    def free(self):
        """Give the memory back to its pool.

        The next ``allocate`` can hand the block out again, so nothing may read or
        write it any more. While arrays or memoryviews of it live, the handle is dead
        at once and the block goes back with the last of them.

        Raises:
            FreedMemoryError: It was freed before.
            ValueError: It is a slice; free the memory that it was cut from.

        Complexity: O(1). Thread-safe; takes no lock and never calls the device.
        """
        cdef Block* block
        with cython.critical_section(self):
            block = self.block
            self.block = NULL
        if block is NULL:
            raise cold["refuse_free"](self)
        if self._root is None:
            self.owner._take_back(block, self.size)
        else:
            self._root = None

    def __dealloc__(self):
        if self.block is not NULL and self._root is None:
            self.owner._take_back(self.block, self.size)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self.block is not NULL:
            self.free()

    def _place(self):
        """Return arena, offset and capacity; ``None`` when it has no block."""
        cdef Block* block = self.block
        if block is NULL:
            return None
        arena = None if block.arena is NULL else <object>block.arena
        return arena, block.offset_and_flags & ~<word>FLAGS, block.bin.capacity

    def _watch(self):
        if self.block is NULL or self.block.watch is NULL:
            return None
        return <object>self.block.watch

    def _keeper(self):
        """Return a second handle of the block, for a root to hold."""
        return self.owner._handle(self.block, self.size)

    def _forget_block(self):
        """Keep the block no longer, without freeing it."""
        self.block = NULL

    def _exchange(self, Memory other):
        """Swap blocks and sizes with another handle of the same pool."""
        self.block, other.block = other.block, self.block
        self.size, other.size = other.size, self.size

    @property
    def _pool(self):
        return self.owner

    @property
    def _nbytes(self):
        return self.size

    @property
    def pool(self):
        """The pool that the memory came from."""
        return self.owner

    @property
    def nbytes(self):
        """Bytes asked for."""
        return self.size

    @property
    def capacity(self):
        """Bytes given: ``nbytes`` rounded up to the pool's granularity."""
        return cold["capacity"](self)

    @property
    def address(self):
        """Where the memory starts; 0 for zero bytes. Not covered by ``free``."""
        return cold["address"](self)

    @property
    def native(self):
        """What the device's own API calls this memory: an address, a ``cl_mem``."""
        return cold["native"](self)

    @property
    def device(self):
        """The device's name, as in ``"cpu"``."""
        return cold["device"](self)

    @property
    def tag(self):
        """The tag that the memory was allocated under."""
        return cold["tag"](self)

    @property
    def stream(self):
        """The stream that owns the memory; ``None`` on devices without streams."""
        return cold["stream"](self)

    @property
    def is_freed(self):
        """Whether ``free()`` has been called, on it or on what it was cut from."""
        return cold["is_freed"](self)

    @property
    def __array_interface__(self):
        return cold["array_interface"](self)

    def as_array(self, dtype="uint8", shape=None):
        """Return a NumPy array over the memory, without a copy."""
        return cold["as_array"](self, dtype, shape)

    def memoryview(self):
        """Return a writable view of the bytes; it keeps the block live."""
        return cold["memoryview"](self)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        # The view's own root is the exporter, so nothing is left to release here.
        PyObject_GetBuffer(cold["memoryview"](self), buffer, flags)

    def tobytes(self):
        """Return a copy of the content."""
        return cold["tobytes"](self)

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        return cold["cut"](self, part)

    def copy_from(self, source, *, stream=None):
        """Copy the bytes of ``source`` to the start of this memory."""
        cold["copy_from"](self, source, stream)

    def copy_to(self, destination, *, stream=None):
        """Copy all bytes to the start of ``destination``."""
        cold["copy_to"](self, destination, stream)

    def fill(self, value=0):
        """Set every byte to ``value``, 0 to 255."""
        cold["fill"](self, value)

    def resize(self, nbytes):
        """Change ``nbytes``; the content up to the smaller size stays."""
        cold["resize"](self, nbytes)

    def record_stream(self, stream):
        """Say that queued work of another stream uses the memory."""
        cold["record_stream"](self, stream)

    def __reduce_ex__(self, protocol):
        raise cold["refuse_pickle"](self)

    def __repr__(self):
        return cold["repr"](self)


cdef class HotPool:
    """Bins in front of the arenas' indexes, and what every allocation counts.

    ``Pool`` adds everything that is not hot: growing, trimming, limits, statistics.
    """

    # Arenas of small blocks, and of large ones, where a pool tells them apart.
    cdef readonly tuple _bands
    cdef list small_arenas
    cdef list large_arenas
    cdef public word _small_nbytes
    cdef public word _leash_nbytes
    cdef public object _lock
    cdef public unsigned long _lock_holder
    cdef readonly word _binned_nbytes
    cdef readonly word _live_nbytes
    cdef readonly word _live_high_water
    cdef readonly word _allocation_count
    cdef readonly word _miss_count
    cdef Slot* slots  # open addressing; a power of two of them
    cdef Py_ssize_t slot_count
    cdef Py_ssize_t bin_count
    cdef Bin* filled_small
    cdef Bin* filled_large
    cdef Block* returned
    cdef Block* unused
    cdef Slab* slabs
    cdef bint returns_every_free

    def __cinit__(self, *arguments, **options):
        self.small_arenas = []
        self.large_arenas = []
        self._bands = (self.small_arenas, self.large_arenas)
        self._small_nbytes = LARGEST_REQUEST
        self._lock = threading.Lock()
        self.slot_count = 256
        self.slots = <Slot*>calloc(self.slot_count, sizeof(Slot))
        if self.slots is NULL:
            raise MemoryError("no memory for the bins of a pool")

    def __init__(self):
        pass

    def __dealloc__(self):
        cdef Py_ssize_t i
        cdef Slab* slab = self.slabs
        cdef Slab* following
        if self.slots is not NULL:
            for i in range(self.slot_count):
                free(self.slots[i].bin)
            free(self.slots)
        while slab is not NULL:
            following = slab.next
            free(slab)
            slab = following

    def allocate(self, nbytes, *, alignment=None, stream=None, tag=None):
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
        cdef word size
        cdef int overflow = 0
        if (
            type(nbytes) is not int
            or alignment is not None
            or stream is not None
            or tag is not None
            or active_watches
        ):
            return self._allocate_with(nbytes, alignment, stream, tag)
        size = PyLong_AsLongLongAndOverflow(nbytes, &overflow)
        if overflow or size <= 0 or size > LARGEST_REQUEST:
            return self._allocate_with(nbytes, None, None, None)
        # The handle first: it is the one step that may fail or run a finalizer.
        cdef Memory memory = Memory.__new__(Memory)
        memory.owner = self
        memory.size = size
        cdef Block* block = NULL
        with cython.critical_section(self):
            block = self._pop((size + GRANULARITY - 1) & ~<word>(GRANULARITY - 1))
            if block is not NULL:
                self._count_live(block, size)
        if block is NULL:
            block = self._miss_for(size)
            with cython.critical_section(self):
                self._count_live(block, size)
        memory.block = block
        return memory

    cdef inline void _count_live(self, Block* block, word size) noexcept:
        block.offset_and_flags |= LIVE
        block.nbytes = size
        self._binned_nbytes -= block.bin.capacity
        self._allocation_count += 1
        self._live_nbytes += size
        if self._live_nbytes > self._live_high_water:
            self._live_high_water = self._live_nbytes

    cdef inline Block* _pop(self, word capacity) noexcept:
        """Return a free block of a capacity, or NULL when its bin is empty."""
        cdef Py_ssize_t mask = self.slot_count - 1
        cdef Py_ssize_t i = _hash(capacity) & mask
        cdef Block* block
        while self.slots[i].capacity != capacity:
            if self.slots[i].bin is NULL:
                return NULL
            i = (i + 1) & mask
        block = self.slots[i].bin.top
        if block is not NULL:
            self.slots[i].bin.top = block.next
        return block

    cdef void _take_back(self, Block* block, word size) noexcept:
        """Put a block that is no longer live into its bin."""
        cdef PyObject* watch = block.watch
        cdef bint is_last = False
        if watch is not NULL:
            block.watch = NULL
            (<object>watch).freed()
            Py_DECREF(<object>watch)
        with cython.critical_section(self):
            self._live_nbytes -= size
            self._binned_nbytes += block.bin.capacity
            block.offset_and_flags &= ~<word>LIVE
            if block.arena is NULL:
                self._discard(block)
            elif self.returns_every_free or block.offset_and_flags & UNBINNED:
                block.next = self.returned
                self.returned = block
                is_last = self.returns_every_free
            else:
                self._push(block)
        if is_last:
            self._freed_after_close()

    cdef inline void _push(self, Block* block) noexcept:
        cdef Bin* bin = block.bin
        cdef Block* top = bin.top
        if not bin.is_large:
            block.next = top
            bin.top = block
            if not bin.is_listed:
                bin.is_listed = True
                bin.next_filled = self.filled_small
                self.filled_small = bin
            return
        # The lower of the two freed last on top, which keeps high pages idle.
        if top is not NULL and top.offset_and_flags < block.offset_and_flags:
            block.next = top.next
            top.next = block
        else:
            block.next = top
            bin.top = block
        if not bin.is_listed:
            bin.is_listed = True
            bin.next_filled = self.filled_large
            self.filled_large = bin

    cdef Memory _handle(self, Block* block, word size):
        cdef Memory memory = Memory.__new__(Memory)
        memory.owner = self
        memory.size = size
        memory.block = block
        return memory

    def _hand_out(self, uintptr_t token, word nbytes, watch):
        """Count a block as live and make its handle."""
        cdef Block* block = <Block*>token
        cdef Memory memory = self._handle(NULL, nbytes)
        with cython.critical_section(self):
            self._count_live(block, nbytes)
            if watch is not None:
                Py_INCREF(watch)
                block.watch = <PyObject*>watch
        memory.block = block
        return memory

    def _slice_of(self, root, word nbytes):
        """Return a handle without a block, whose root is what it was cut from."""
        cdef Memory memory = self._handle(NULL, nbytes)
        memory._root = root
        return memory

    def _miss(self, word nbytes):
        """Return a block of a size from its bin or elsewhere, as a token."""
        cdef Block* block
        with cython.critical_section(self):
            if nbytes == 0:
                block = self._new_block(None, 0, 0)
            else:
                block = self._pop(_round(nbytes))
        if block is NULL:
            block = self._miss_for(nbytes)
        return <uintptr_t>block

    cdef Block* _miss_for(self, word nbytes) except NULL:
        """Return a block for a size whose bin is empty; it counts as binned still."""
        cdef Block* block = NULL
        cdef word capacity = _round(nbytes)
        if (
            MADL_HAS_INTERPRETER_LOCK
            and self._lock_holder == 0
            and self.returned is NULL
        ):
            block = self._place(capacity)
        elif self._lock_holder == threading.get_ident():
            return <Block*><uintptr_t>self._place_apart(nbytes)
        else:
            with self._lock:
                self._lock_holder = threading.get_ident()
                try:
                    self._take_back_returned()
                    with cython.critical_section(self):
                        block = self._place(capacity)
                finally:
                    self._lock_holder = 0
        if block is NULL:
            block = <Block*><uintptr_t>self._place_slowly(nbytes, capacity, 0)
        return block

    cdef Block* _place(self, word capacity) except? NULL:
        """Take a block from where no page is missing, or return NULL."""
        cdef HotArena arena
        cdef word offset
        cdef list band
        self._miss_count += 1
        if self.filled_large is not NULL:
            self._flush_large()
        if self._binned_nbytes > self._leash_nbytes:
            self._flush_small()
        band = self.large_arenas if capacity > self._small_nbytes else self.small_arenas
        for arena in band:
            offset = arena.blocks.allocate(capacity)
            if offset >= 0:
                return self._new_block(arena, offset, capacity)
        return NULL

    def _block_at(self, HotArena arena, word offset, word capacity, *, bint is_binned):
        """Return the block for a place that was taken; its free goes to its bin."""
        cdef Block* block
        with cython.critical_section(self):
            block = self._new_block(arena, offset, capacity)
            if not is_binned:
                block.offset_and_flags |= UNBINNED
        return <uintptr_t>block

    cdef Block* _new_block(
        self, HotArena arena, word offset, word capacity
    ) except NULL:
        cdef Bin* bin = self._bin(capacity)
        cdef Block* block
        if self.unused is NULL:
            self._add_slab()
        block = self.unused
        self.unused = block.next
        block.offset_and_flags = offset
        block.nbytes = 0
        block.bin = bin
        block.arena = NULL if arena is None else <PyObject*>arena
        block.watch = NULL
        bin.placed += 1
        self._binned_nbytes += capacity
        return block

    cdef void _discard(self, Block* block) noexcept:
        """Make the record of a block unused."""
        self._binned_nbytes -= block.bin.capacity
        block.bin.placed -= 1
        block.bin = NULL
        block.next = self.unused
        self.unused = block

    cdef int _add_slab(self) except -1:
        cdef Py_ssize_t i
        cdef Slab* slab = <Slab*>malloc(sizeof(Slab))
        if slab is NULL:
            raise MemoryError("no memory for the records of a pool's blocks")
        slab.next = self.slabs
        self.slabs = slab
        for i in range(SLAB_LENGTH - 1, -1, -1):
            slab.blocks[i].bin = NULL
            slab.blocks[i].next = self.unused
            self.unused = &slab.blocks[i]
        return 0

    cdef Bin* _bin(self, word capacity) except NULL:
        """Return the bin of a capacity; the first call makes it."""
        cdef Slot* slot = _slot_for(self.slots, self.slot_count, capacity)
        if slot.bin is NULL:
            if 2 * self.bin_count >= self.slot_count:
                self._rebuild_slots()
                slot = _slot_for(self.slots, self.slot_count, capacity)
            slot.bin = <Bin*>calloc(1, sizeof(Bin))
            if slot.bin is NULL:
                raise MemoryError("no memory for the bins of a pool")
            slot.capacity = slot.bin.capacity = capacity
            slot.bin.is_large = capacity > self._small_nbytes
            self.bin_count += 1
        return slot.bin

    cdef int _rebuild_slots(self) except -1:
        """Drop the bins that no block uses; double the slots if that is not enough."""
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        cdef Py_ssize_t count = self.slot_count
        cdef Slot* old = self.slots
        cdef Slot* new
        for i in range(count):
            if old[i].bin is not NULL and (old[i].bin.placed or old[i].bin.is_listed):
                kept += 1
        while 4 * kept >= count:
            count *= 2
        new = <Slot*>calloc(count, sizeof(Slot))
        if new is NULL:
            raise MemoryError("no memory for the bins of a pool")
        for i in range(self.slot_count):
            if old[i].bin is NULL:
                continue
            if old[i].bin.placed or old[i].bin.is_listed:
                _slot_for(new, count, old[i].capacity)[0] = old[i]
            else:
                free(old[i].bin)
        free(old)
        self.slots = new
        self.slot_count = count
        self.bin_count = kept
        return 0

    cdef int _unplace(self, Block* block) except -1:
        """Give a free block back to the index, where it coalesces."""
        cdef HotArena arena = <HotArena>block.arena
        arena.blocks.free(
            block.offset_and_flags & ~<word>FLAGS, block.bin.capacity
        )
        self._discard(block)
        if arena.is_apart:
            self._release_apart(arena)
        return 0

    cdef int _flush_bin(self, Bin* bin) except -1:
        cdef Block* block
        bin.is_listed = False
        while bin.top is not NULL:
            block = bin.top
            bin.top = block.next
            self._unplace(block)
        return 0

    cdef int _flush_small(self) except -1:
        cdef Bin* bin
        while self.filled_small is not NULL:
            bin = self.filled_small
            self.filled_small = bin.next_filled
            self._flush_bin(bin)
        return 0

    cdef int _flush_large(self) except -1:
        cdef Bin* bin
        while self.filled_large is not NULL:
            bin = self.filled_large
            self.filled_large = bin.next_filled
            self._flush_bin(bin)
        return 0

    def _flush(self):
        """Give all binned blocks back to the index, where they coalesce."""
        with cython.critical_section(self):
            self._flush_large()
            self._flush_small()

    def _take_back_returned(self):
        cdef Block* block
        while True:
            with cython.critical_section(self):
                block = self.returned
                if block is not NULL:
                    self.returned = block.next
            if block is NULL:
                return
            self._unplace(block)

    def _has_returned(self):
        """Whether blocks wait that belong to no bin."""
        return self.returned is not NULL

    def _return_every_free(self):
        """Let no free go to a bin any more; ``_freed_after_close`` hears of each."""
        self.returns_every_free = True

    def _block_states(self):
        """Return every placed block, live or free in a bin."""
        cdef Slab* slab = self.slabs
        cdef Block* block
        cdef Py_ssize_t i
        states = []
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                block = &slab.blocks[i]
                if block.bin is not NULL and block.arena is not NULL:
                    states.append(_state(block))
            slab = slab.next
        return states


cdef _state(Block* block):
    tag = None if block.watch is NULL else (<object>block.watch).tag
    return BlockState(
        <object>block.arena,
        block.offset_and_flags & ~<word>FLAGS,
        block.bin.capacity,
        bool(block.offset_and_flags & LIVE),
        block.nbytes,
        tag,
    )


cdef inline word _round(word nbytes) noexcept:
    return (nbytes + GRANULARITY - 1) & ~<word>(GRANULARITY - 1)


cdef inline Py_ssize_t _hash(word capacity) noexcept:
    # Fibonacci hashing; the high half is the well-mixed one.
    return <Py_ssize_t>(
        (<uint64_t>(capacity >> 9) * <uint64_t>0x9E3779B97F4A7C15ULL) >> 40
    )


cdef Slot* _slot_for(Slot* slots, Py_ssize_t count, word capacity) noexcept:
    """Return the slot that holds a capacity, or the free one where it belongs."""
    cdef Py_ssize_t i = _hash(capacity) & (count - 1)
    while slots[i].bin is not NULL and slots[i].capacity != capacity:
        i = (i + 1) & (count - 1)
    return &slots[i]
