# C types for pages.py, and the four functions on page states. No policy lives here.
cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef inline unsigned char* _states(Py_ssize_t count) except NULL:
    cdef unsigned char* states = <unsigned char*>calloc(count + 1, 1)
    if states is NULL:
        raise MemoryError("no memory for the states of an arena's pages")
    return states

cdef inline void _discard(unsigned char* states) noexcept nogil:
    free(states)

cdef inline void _set(unsigned char* states, int state, Py_ssize_t first, Py_ssize_t stop) noexcept nogil:
    memset(states + first, state, stop - first)

cdef inline Py_ssize_t _count(unsigned char* states, int state, Py_ssize_t first, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t found = 0
    cdef Py_ssize_t page
    for page in range(first, stop):
        found += states[page] == state
    return found

cdef inline Py_ssize_t _last(unsigned char* states, int state, Py_ssize_t first, Py_ssize_t stop) noexcept nogil:
    while stop > first:
        stop -= 1
        if states[stop] == state:
            return stop
    return -1

@cython.final
cdef class Pages:
    cdef readonly Py_ssize_t count
    cdef readonly long long page_nbytes
    cdef unsigned char* states
    cdef readonly Py_ssize_t committed
    cdef readonly Py_ssize_t idle
    cdef readonly Py_ssize_t top
    cdef readonly long long vacated

    @cython.locals(first=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t missing(self, long long offset, long long nbytes) noexcept nogil
    @cython.locals(first=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t idle_under(self, long long offset, long long nbytes) noexcept nogil
    @cython.locals(states="unsigned char*", first=Py_ssize_t, stop=Py_ssize_t)
    cpdef void occupy(self, long long offset, long long nbytes) noexcept nogil
    @cython.locals(page_nbytes="long long", first=Py_ssize_t, stop=Py_ssize_t)
    cpdef void vacate(self, long long offset, long long nbytes, long long free_offset, long long free_nbytes) noexcept nogil
    cpdef void commit(self, Py_ssize_t first, Py_ssize_t stop) noexcept nogil
    cpdef void decommit(self, Py_ssize_t first, Py_ssize_t stop) noexcept nogil
    @cython.locals(first=Py_ssize_t, stop=Py_ssize_t, page=Py_ssize_t, start=Py_ssize_t)
    cpdef list missing_runs(self, long long offset, long long nbytes)
    @cython.locals(first=Py_ssize_t, stop=Py_ssize_t, lowest=Py_ssize_t)
    cpdef tuple last_idle_run(self, Py_ssize_t most, Py_ssize_t keep_first=*, Py_ssize_t keep_stop=*)
    @cython.locals(pages=Pages, states="unsigned char*", top=Py_ssize_t, page=Py_ssize_t, start=Py_ssize_t, first=Py_ssize_t, stop=Py_ssize_t)
    cpdef Pages without(self, list lost)
    @cython.locals(states="unsigned char*", committed=Py_ssize_t, idle=Py_ssize_t, expected=Py_ssize_t, first=Py_ssize_t, stop=Py_ssize_t, live=Py_ssize_t)
    cpdef check(self, list free_blocks)
