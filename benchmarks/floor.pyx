# cython: language_level=3
"""The least that a handle made and freed by two method calls can cost."""

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Handle:
    cdef size_t address, nbytes
    cdef object owner

    def free(self):
        self.address = 0


@cython.final
cdef class Maker:
    def allocate(self, size_t nbytes):
        cdef Handle handle = Handle.__new__(Handle)
        handle.address = nbytes
        handle.nbytes = nbytes
        handle.owner = self
        return handle
