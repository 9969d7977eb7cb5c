# What the other compiled modules may use of _compiled.pyx.
cimport cython
from cpython.object cimport PyObject
from madl.core.first_fit cimport FirstFit
from madl.core.skiplist cimport word
from madl.hotpath.bins cimport Bin, Bins, Block, Shared, madl_journal

cdef struct Slab

cdef void write_to(madl_journal* newest, number) noexcept
cdef int wipe(Bins* bins, Block* block) noexcept nogil

cdef class HotArena:
    cdef readonly FirstFit blocks
    cdef object start  # its address, or None
    cdef readonly bint is_apart
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

cdef class HotPool:
    cdef Bins bins
    cdef Shared own
    cdef HotPool joined  # or None
    cdef Slab* slabs
    # Arenas of small blocks, and of large ones, where a pool tells them apart.
    cdef readonly tuple _bands
    cdef list small_arenas
    cdef list large_arenas
    cdef public word _small_nbytes
    cdef word most_nbytes  # or the limit: more is refused
    cdef public word _leash_nbytes
    cdef object lock
    cdef public dict _users
    cdef dict lanes_seen  # by stream object: most allocations name a known one
    cdef readonly word _miss_count
    cdef bint zeroes_new  # blocks, before they are handed out
    cdef bint wipes_later  # what is freed, by the device

    @cython.final
    cdef void become_guarded(self) noexcept
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
    @cython.final
    cdef Block* miss(self, word nbytes) except NULL
    @cython.final
    cdef Block* place(self, word capacity) except? NULL
    @cython.final
    cdef Block* new_block(self, HotArena arena, word offset, word capacity) except NULL
    @cython.final
    cdef int add_slab(self) except -1
    @cython.final
    cdef void return_since(self, word placed_before) noexcept
    @cython.final
    cdef void take_back_later(self, Block* block) noexcept
    @cython.final
    cdef Bin* bin_of(self, word capacity) except NULL
    @cython.final
    cdef int rebuild_slots(self) except -1
    @cython.final
    cdef int unplace(self, Block* block) except -1
    @cython.final
    cdef int flush(self, Bin** filled) except -1
