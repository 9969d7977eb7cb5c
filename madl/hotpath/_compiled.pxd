# What the other compiled modules may use of _compiled.pyx.
cimport cython
from cpython.object cimport PyObject
from madl.core.first_fit cimport FirstFit
from madl.core.skiplist cimport word
from madl.hotpath.bins cimport Bin, BinTable, Block, Counts, madl_journal

cdef struct Slab

cdef void write_to(madl_journal* newest, number) noexcept
cdef int wipe(BinTable* bins, Block* block) noexcept nogil
cdef void keep_error(error) noexcept
cdef void raise_soon() noexcept

cdef class HotArena:
    cdef readonly FirstFit blocks
    cdef object start  # its address, or None
    cdef readonly bint is_dedicated
    cdef unsigned long long base

@cython.final
cdef class Memory:
    # The pool, and what backs views of the memory, or NULL. Owned, but plain pointers:
    # Cython would first set them to None, and count that reference, in every handle.
    cdef PyObject* owner
    cdef PyObject* root
    cdef Block* block
    cdef word size
    # No method in C: a table of them is one more word in every handle.

@cython.final
@cython.no_gc
cdef class Root:
    cdef readonly Memory keeper
    cdef void* address
    cdef readonly word nbytes

cdef class Shared:
    cdef Counts counts
    cdef object lock_object

cdef class Bins:
    cdef BinTable table
    cdef readonly Shared shared
    cdef Slab* slabs
    cdef Block* refused  # by an index, which had it free: the pool is broken
    # Arenas of small blocks, and of large ones, where a pool tells them apart.
    cdef readonly tuple bands
    cdef list small_arenas
    cdef list large_arenas
    cdef public word small_nbytes
    cdef word largest  # request that bins may serve
    cdef public word leash_nbytes  # more than this in bins goes back at a miss
    cdef public dict users  # by arena and offset: other streams that use a block
    cdef public word miss_count
    cdef bint zeroes_new  # blocks, before they are handed out
    cdef bint asks  # the slow path to take each block back

    @cython.final
    cdef void become_guarded(self) noexcept
    @cython.final
    cdef Block* miss(self, word nbytes, lane) except NULL
    @cython.final
    cdef Block* place(self, word capacity, int* status) noexcept nogil
    @cython.final
    cdef int raise_for(self, int status) except -1
    @cython.final
    cdef int reserve(self, word capacity) noexcept nogil
    @cython.final
    cdef Block* new_block(self, PyObject* arena, word offset, word capacity) noexcept nogil
    @cython.final
    cdef void add_slab(self, Slab* slab) noexcept nogil
    @cython.final
    cdef void add_bin(self, Bin* bin, word capacity) noexcept nogil
    @cython.final
    cdef bint rebuild_slots(self) noexcept nogil
    @cython.final
    cdef int unplace_block(self, Block* block) noexcept nogil
    @cython.final
    cdef int flush_listed(self, Bin** filled) noexcept nogil
    @cython.final
    cdef void return_taken(self, word placed_before) noexcept
    @cython.final
    cdef void take_back_later(self, Block* block) noexcept nogil

cdef class HotPool:
    cdef Bins bins
    cdef BinTable* table  # of the bins: one load less than through the object
    cdef object lane  # the slow path
    cdef HotPool head  # of a stream's lane: the pool itself; else None
    cdef dict lanes_seen  # by stream object: most allocations name a known one

    @cython.final
    cdef int take_back(self, Block* block) except -1
    @cython.final
    cdef void take_back_dropped(self, Block* block) noexcept
    @cython.final
    cdef int tell_watch(self, Block* block, bint is_dropped) except -1
    @cython.final
    cdef int put_back(self, Block* block) except -1
    @cython.final
    cdef Memory handle(self, Block* block, word size)
