# What other compiled modules may use of functions.pyx.
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t
from madl.hotpath.bins cimport BinTable, Block

cdef struct Entry:
    uintptr_t address  # 0: never used; 1: used and removed
    Block* block

cdef struct Context:
    # Lives as long as the process: blocks may be freed after everything else is gone.
    PyObject* pool
    BinTable* bins  # the pool's
    Entry* entries  # open addressing; a power of two of them; under the pool's guard
    size_t count
    size_t used  # removed ones included
    # Of all addresses that were ever handed out.
    uintptr_t lowest
    uintptr_t highest


cdef inline bint may_hold(Context* context, void* pointer) noexcept nogil:
    # Whether an address could be the pool's. Without the guard: who has an address got
    # it after these were set.
    return context.lowest <= <uintptr_t>pointer <= context.highest


cdef void* native_malloc(void* opaque, size_t nbytes) noexcept nogil
cdef void* native_calloc(void* opaque, size_t count, size_t nbytes) noexcept nogil
cdef void* native_realloc(void* opaque, void* pointer, size_t nbytes) noexcept nogil
cdef bint native_try_free(void* opaque, void* pointer) noexcept nogil
cdef size_t native_nbytes(void* opaque, void* pointer) noexcept nogil
