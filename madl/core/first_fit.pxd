# C types for first_fit.py. No logic lives here.
cimport cython
from madl.core.pages cimport Pages
from madl.core.skiplist cimport SkipList, word

@cython.final
cdef class FirstFit:
    cdef readonly word nbytes
    cdef readonly word look_ahead
    cdef readonly SkipList index
    cdef readonly Pages pages
    cdef readonly word free_nbytes
    cdef readonly Py_ssize_t placed_count

    cpdef bint reserve(self) noexcept nogil
    cpdef word find(self, word nbytes, word alignment=*) noexcept nogil
    @cython.locals(offset=word)
    cpdef word allocate(self, word nbytes) noexcept nogil
    cpdef int take(self, word offset, word nbytes) except -1
    cpdef int free(self, word offset, word nbytes) except -1
    @cython.locals(status=int)
    cpdef int try_free(self, word offset, word nbytes) noexcept nogil
    @cython.locals(index=SkipList, pages=Pages, free_nbytes=word, end=word, offset=word, nbytes=word)
    cpdef rebuild(self, list placed, list lost)
    cpdef bint is_empty(self) noexcept
    cpdef word largest_free(self) noexcept
    cpdef list free_blocks(self)
    cpdef check(self)
