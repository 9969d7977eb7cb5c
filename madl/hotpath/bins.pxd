# Bins in C: the blocks of one pool, free by capacity or live, and what is counted.
#
# Nothing here touches a Python object or needs the interpreter's lock. Where other
# threads may come in without it, the caller holds the guard.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from madl.core.skiplist cimport word

cdef extern from "guard.h":
    ctypedef int madl_guard
    void madl_enter(madl_guard* guard) noexcept nogil
    void madl_leave(madl_guard* guard) noexcept nogil
    int madl_at_fork(
        void (*before)() noexcept nogil,
        void (*in_parent)() noexcept nogil,
        void (*in_child)() noexcept nogil,
    )
    const bint MADL_HAS_INTERPRETER_LOCK

cdef extern from "journal.h":
    ctypedef struct madl_journal:
        uint64_t end
        int error
        int is_guarded
        int is_busy
        int pins
        madl_guard guard
        madl_journal* older
        madl_journal* linked
    ctypedef struct madl_note:
        uint64_t nbytes
        uint64_t stream
        uint64_t tag
    const int MADL_ALLOCATE
    const int MADL_FREE
    madl_note madl_note_of(const void* block, int kind) noexcept nogil
    madl_journal* madl_put_note(madl_journal* newest, madl_note note) noexcept nogil
    void madl_settle(madl_journal* full, madl_note note) noexcept nogil
    void madl_journal_join(madl_journal* journal) noexcept nogil

cdef enum:
    GRANULARITY = 512
    # Offsets are multiples of GRANULARITY, so their low bits can tell a block's state.
    LIVE = 1
    UNBINNED = 2
    TAKEN = 4  # in flight: a thread will make it live, or wipes it
    LISTED = 8  # in a bin or in the returned list, while lost blocks are looked for
    WIPED = 16  # UNBINNED too: its content goes when it is freed
    FLAGS = 511

cdef enum:
    # What put_back leaves to its caller.
    NOTHING = 0
    TELL = 1
    WIPE = 2

cdef struct Bin:
    # The free blocks of one capacity, the one to hand out next on top.
    word capacity
    Block* top
    Bin* next_filled
    Py_ssize_t placed  # blocks of this capacity, live ones included
    bint is_large
    bint is_listed  # among the filled ones: a bin may have been emptied since

cdef struct Block:
    # A part of an arena. 48 bytes.
    word offset_and_flags
    word nbytes  # while it is taken: its number among those that were
    Bin* bin  # of its capacity; NULL while the record is unused
    # In its bin, in the returned list or among the unused; while it is taken: the
    # identity of the thread that has it.
    Block* next
    PyObject* arena  # borrowed: the pool keeps an arena while a block lies in it
    PyObject* watch  # owned, or NULL

cdef struct Slot:
    word capacity
    Bin* bin

cdef struct Counts:
    # What a pool and its lanes share: all that is counted, and which thread is inside.
    word binned_nbytes
    word live_nbytes
    word live_high_water
    word allocation_count
    word placed_count
    bint was_interrupted
    unsigned long lock_holder
    bint is_guarded
    madl_guard guard
    madl_journal* journal  # the newest of those that are active, or NULL
    Counts* next  # of another pool
    Counts* previous

cdef struct BinTable:
    Counts* shared
    Slot* slots  # open addressing; a power of two of them
    Py_ssize_t slot_count
    Py_ssize_t bin_count
    Bin* filled_small
    Bin* filled_large
    Block* returned  # free, and in no bin
    Block* unused
    word first_flags  # of every block, as soon as it has a place
    bint returns_every_free
    # As journals know them; the tag is that of the allocation being counted.
    word stream_number
    word tag_number


cdef inline void enter(BinTable* bins) noexcept nogil:
    if bins.shared.is_guarded:
        madl_enter(&bins.shared.guard)


cdef inline void leave(BinTable* bins) noexcept nogil:
    if bins.shared.is_guarded:
        madl_leave(&bins.shared.guard)


cdef inline void note_allocated(BinTable* bins, Block* block) noexcept nogil:
    # Notes a block that is live and that no other thread knows; the guard is held, and
    # may be left for as long as a file takes.
    cdef madl_note note = madl_note_of(block, MADL_ALLOCATE)
    note.nbytes = <uint64_t>block.nbytes
    note.stream = <uint64_t>bins.stream_number
    note.tag = <uint64_t>bins.tag_number
    bins.tag_number = 0  # now: where the guard is left, others have allocations counted
    put_note(bins, note)


cdef inline void note_freed(BinTable* bins, Block* block) noexcept nogil:
    # As note_allocated, before anything else of a free: a thread that allocates the
    # block next notes that later.
    put_note(bins, madl_note_of(block, MADL_FREE))


cdef inline void put_note(BinTable* bins, madl_note note) noexcept nogil:
    cdef madl_journal* full = madl_put_note(bins.shared.journal, note)
    while full is not NULL:
        leave(bins)
        madl_settle(full, note)
        enter(bins)
        full = madl_put_note(bins.shared.journal, note)


cdef inline word round_up(word nbytes) noexcept nogil:
    return (nbytes + GRANULARITY - 1) & ~<word>(GRANULARITY - 1)


cdef inline word offset_of(Block* block) noexcept nogil:
    return block.offset_and_flags & ~<word>FLAGS


cdef inline Slot* slot_for(Slot* slots, Py_ssize_t count, word capacity) noexcept nogil:
    # The slot that holds a capacity, or the free one where it belongs. Fibonacci
    # hashing: the high half of the product is the well-mixed one.
    cdef Py_ssize_t i = <Py_ssize_t>(
        (<uint64_t>(capacity >> 9) * <uint64_t>0x9E3779B97F4A7C15ULL) >> 40
    ) & (count - 1)
    while slots[i].capacity != capacity and slots[i].bin is not NULL:
        i = (i + 1) & (count - 1)
    return &slots[i]


cdef inline Block* pop(BinTable* bins, word capacity) noexcept nogil:
    # A free block of a capacity, or NULL when its bin is empty.
    cdef Bin* bin = slot_for(bins.slots, bins.slot_count, capacity).bin
    cdef Block* block
    if bin is NULL:
        return NULL
    block = bin.top
    if block is not NULL:
        bin.top = block.next
    return block


cdef inline void push(BinTable* bins, Block* block) noexcept nogil:
    cdef Bin* bin = block.bin
    cdef Block* top = bin.top
    # The lower of the two large blocks freed last on top: it keeps high pages idle.
    if (
        bin.is_large
        and top is not NULL
        and top.offset_and_flags < block.offset_and_flags
    ):
        block.next = top.next
        top.next = block
    else:
        block.next = top
        bin.top = block
    if bin.is_listed:
        return
    bin.is_listed = True
    if bin.is_large:
        bin.next_filled = bins.filled_large
        bins.filled_large = bin
    else:
        bin.next_filled = bins.filled_small
        bins.filled_small = bin


cdef inline void count_live(BinTable* bins, Block* block, word nbytes) noexcept nogil:
    # While a recording runs, the guard may be left in the end.
    cdef Counts* shared = bins.shared
    block.offset_and_flags = (block.offset_and_flags & ~<word>TAKEN) | LIVE
    block.nbytes = nbytes
    shared.binned_nbytes -= block.bin.capacity
    shared.allocation_count += 1
    shared.live_nbytes += nbytes
    if shared.live_nbytes > shared.live_high_water:
        shared.live_high_water = shared.live_nbytes
    if shared.journal is not NULL:
        note_allocated(bins, block)


cdef inline void take(BinTable* bins, Block* block, unsigned long thread) noexcept nogil:
    # Marks a block that is in no list, so that an interruption does not lose it.
    bins.shared.placed_count += 1
    block.nbytes = bins.shared.placed_count
    block.next = <Block*>thread
    block.offset_and_flags |= TAKEN


cdef inline void discard(BinTable* bins, Block* block) noexcept nogil:
    # Makes the record of a free block unused. One without a place counts no bytes.
    if block.arena is not NULL:
        bins.shared.binned_nbytes -= block.bin.capacity
    block.bin.placed -= 1
    block.bin = NULL
    block.next = bins.unused
    bins.unused = block


cdef inline int put_back(BinTable* bins, Block* block) noexcept nogil:
    # Puts a block that is no longer live where it can be had again; returns NOTHING,
    # TELL when the pool is closed and should hear of it, or WIPE when it lies nowhere
    # yet: the caller leaves the guard, wipes it, and puts it back with put_back_wiped.
    # While a recording runs, the guard may be left at the start.
    if bins.shared.journal is not NULL:
        note_freed(bins, block)
    bins.shared.live_nbytes -= block.nbytes
    bins.shared.binned_nbytes += block.bin.capacity
    block.offset_and_flags &= ~<word>LIVE
    if block.arena is NULL:
        discard(bins, block)
    elif bins.returns_every_free or block.offset_and_flags & UNBINNED:
        if block.offset_and_flags & WIPED:
            block.offset_and_flags |= TAKEN  # so that recovery leaves it alone
            block.next = NULL
            return WIPE
        return put_back_wiped(bins, block)
    else:
        push(bins, block)
    return NOTHING


cdef inline int put_back_wiped(BinTable* bins, Block* block) noexcept nogil:
    # Puts a block of no bin where the next miss finds it; returns NOTHING or TELL.
    block.offset_and_flags &= ~<word>TAKEN
    block.next = bins.returned
    bins.returned = block
    return TELL if bins.returns_every_free else NOTHING
