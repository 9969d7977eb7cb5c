# C types for skiplist.py. No logic lives here.
cimport cython
from libc.stdlib cimport calloc, free

ctypedef long long word
ctypedef Py_ssize_t record

cdef inline word* _words(Py_ssize_t count) noexcept nogil:
    return <word*>calloc(count, sizeof(word))

cdef inline void _discard(word* words) noexcept nogil:
    free(words)

@cython.final
cdef class SkipList:
    cdef word* words
    cdef word* path
    cdef word* unused
    cdef readonly Py_ssize_t max_height
    cdef readonly Py_ssize_t height
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef Py_ssize_t made
    cdef Py_ssize_t reserved
    cdef record end
    cdef record found
    cdef record before_found
    cdef word seed
    cdef readonly word joined_offset
    cdef readonly word joined_nbytes
    cdef public word visits
    cdef public word searches

    cpdef bint reserve(self, Py_ssize_t count) noexcept nogil
    cpdef word largest(self) noexcept nogil
    @cython.locals(words="word*", path="word*", slot=Py_ssize_t, level=Py_ssize_t, node=record, before=record, steps=word)
    cpdef word find(self, word nbytes) noexcept nogil
    @cython.locals(words="word*", node=record, had=word)
    cpdef void carve_found(self, word nbytes) noexcept nogil
    @cython.locals(words="word*", node=record, best=record, slot=Py_ssize_t, fitting=word, steps=word)
    cpdef word find_best(self, word nbytes, word most) noexcept nogil
    cpdef void carve_best(self, word offset, word nbytes) noexcept nogil
    @cython.locals(words="word*", node=record, offset=word)
    cpdef word find_aligned(self, word nbytes, word alignment) noexcept nogil
    cpdef int carve(self, word offset, word nbytes) except -1
    @cython.locals(words="word*", node=record, start=word, stop=word, had=word)
    cpdef int try_carve(self, word offset, word nbytes) noexcept nogil
    cpdef int put(self, word offset, word nbytes) except -1
    @cython.locals(words="word*", left=record, right=record, stop=word, total=word)
    cpdef int try_put(self, word offset, word nbytes) noexcept nogil
    @cython.locals(node=record)
    cpdef word covering(self, word offset) noexcept nogil
    @cython.locals(words="word*", path="word*", level=Py_ssize_t, slot=Py_ssize_t, node=record, following=record)
    cdef record _descend(self, word offset) noexcept nogil
    @cython.locals(words="word*", path="word*", level=Py_ssize_t, slot=Py_ssize_t)
    cdef void _complete_path(self, record node, record before) noexcept nogil
    @cython.locals(words="word*", node=record, largest=word, reach=word)
    cdef word _reach_over(self, record first, record stop, Py_ssize_t slot, word enough) noexcept nogil
    @cython.locals(words="word*", path="word*", level=Py_ssize_t, slot=Py_ssize_t, node=record, reach=word)
    cdef void _lower(self, word had) noexcept nogil
    @cython.locals(words="word*", path="word*", slot=Py_ssize_t, node=record)
    cdef void _raise_from(self, Py_ssize_t level, word nbytes) noexcept nogil
    @cython.locals(words="word*", height=Py_ssize_t, slot=Py_ssize_t, level=Py_ssize_t)
    cdef void _extend_down(self, record node, word offset, word nbytes) noexcept nogil
    @cython.locals(words="word*", path="word*", height=Py_ssize_t, level=Py_ssize_t, slot=Py_ssize_t, node=record, before=record, stop=record, reach=word, had=word)
    cdef bint _insert(self, word offset, word nbytes, record right) noexcept nogil
    @cython.locals(words="word*", path="word*", height=Py_ssize_t, level=Py_ssize_t, slot=Py_ssize_t, before=record)
    cdef void _unlink(self, record node) noexcept nogil
    @cython.locals(words="word*", path="word*", bits=word, height=Py_ssize_t, largest=word)
    cdef Py_ssize_t _draw_height(self) noexcept nogil
    @cython.locals(node=record, others=Py_ssize_t, end=Py_ssize_t)
    cdef record _new_record(self, Py_ssize_t height) noexcept nogil
    @cython.locals(node=record)
    cdef record _record_at_end(self, Py_ssize_t height) noexcept nogil
    @cython.locals(node=record, height=Py_ssize_t)
    cdef record _spare_record(self) noexcept nogil
    @cython.locals(count=Py_ssize_t, old="word*", new="word*", i=Py_ssize_t)
    cdef bint _double(self) noexcept nogil
    @cython.locals(node=record)
    cpdef list blocks(self)
    @cython.locals(level=Py_ssize_t)
    cpdef check(self)
    @cython.locals(words="word*", slot=Py_ssize_t, node=record, stop=record, below=record, largest=word)
    cdef _check_level(self, Py_ssize_t level)
