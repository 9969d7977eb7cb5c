"""NumPy's data allocator (NEP 49): large arrays from a pool, small ones as ever.

NumPy frees while an exception is in flight, from any thread, and while the interpreter
exits, so all that it calls is C. What was not taken from the pool is NumPy's own; whose
an address is, the pool knows: NumPy's word for the size is not always the last one.
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uintptr_t
from libc.stdlib cimport calloc as c_calloc
from libc.string cimport memcpy, strcpy

from madl.native.functions cimport (
    Context,
    may_hold,
    native_calloc,
    native_malloc,
    native_nbytes,
    native_realloc,
    native_try_free,
)

from madl.hotpath._compiled import raise_kept as raise_kept
from madl.native.functions import native_functions

cdef enum:
    # Places in NumPy's table of C functions, the same since 1.22.
    SET_HANDLER = 304
    DEFAULT_HANDLER = 306

cdef extern from *:
    """
    /* As in numpy/ndarraytypes.h, so that no NumPy is needed to compile. */
    typedef struct {
        void *context;
        void *(*malloc)(void *, size_t);
        void *(*calloc)(void *, size_t, size_t);
        void *(*realloc)(void *, void *, size_t);
        void (*free)(void *, void *, size_t);
    } madl_allocator;
    typedef struct {
        char name[127];
        uint8_t version;
        madl_allocator allocator;
    } madl_handler;
    """
    ctypedef struct Allocator "madl_allocator":
        void* context
        void* (*malloc)(void*, size_t) noexcept nogil
        void* (*calloc)(void*, size_t, size_t) noexcept nogil
        void* (*realloc)(void*, void*, size_t) noexcept nogil
        void (*free)(void*, void*, size_t) noexcept nogil
    ctypedef struct Handler "madl_handler":
        char name[127]
        uint8_t version
        Allocator allocator

ctypedef object (*SetHandler)(PyObject*)

cdef struct Route:
    # Lives as long as the process: every array points to the handler it came from.
    Handler handler
    Allocator small  # NumPy's own
    Context* large
    size_t threshold

cdef extern from "Python.h":
    # A pool grows no more while the process exits; finalizers may still make arrays.
    int Py_IsInitialized() noexcept nogil

cdef void** api = NULL


cdef int find_api() except -1:
    global api
    if api is NULL:
        try:
            from numpy._core import _multiarray_umath as numpy
        except ImportError:  # before NumPy 2
            from numpy.core import _multiarray_umath as numpy
        api = <void**>PyCapsule_GetPointer(numpy._ARRAY_API, NULL)
    return 0


cdef void* route_malloc(void* opaque, size_t nbytes) noexcept nogil:
    cdef Route* route = <Route*>opaque
    cdef void* pointer
    if nbytes < route.threshold:
        return route.small.malloc(route.small.context, nbytes)
    pointer = native_malloc(route.large, nbytes)
    if pointer is NULL and not Py_IsInitialized():
        return route.small.malloc(route.small.context, nbytes)
    return pointer


cdef void* route_calloc(void* opaque, size_t count, size_t nbytes) noexcept nogil:
    cdef Route* route = <Route*>opaque
    cdef void* pointer
    # By division, as the product may not fit; a size below the threshold does.
    if nbytes == 0 or count <= (route.threshold - 1) // nbytes:
        return route.small.calloc(route.small.context, count, nbytes)
    pointer = native_calloc(route.large, count, nbytes)
    if pointer is NULL and not Py_IsInitialized():
        return route.small.calloc(route.small.context, count, nbytes)
    return pointer


cdef void route_free(void* opaque, void* pointer, size_t nbytes) noexcept nogil:
    cdef Route* route = <Route*>opaque
    if not (may_hold(route.large, pointer) and native_try_free(route.large, pointer)):
        route.small.free(route.small.context, pointer, nbytes)


cdef void* route_realloc(void* opaque, void* pointer, size_t nbytes) noexcept nogil:
    """Move what leaves the pool; what grows stays with whom it is.

    How much there is to move is known of the pool's memory only.
    """
    cdef Route* route = <Route*>opaque
    cdef size_t had = 0
    cdef void* moved
    if pointer is NULL:
        return route_malloc(opaque, nbytes)
    if may_hold(route.large, pointer):
        had = native_nbytes(route.large, pointer)
    if had == 0:
        return route.small.realloc(route.small.context, pointer, nbytes)
    if nbytes >= route.threshold:
        moved = native_realloc(route.large, pointer, nbytes)
        if moved is not NULL or Py_IsInitialized():
            return moved
    moved = route.small.malloc(route.small.context, nbytes)
    if moved is not NULL:
        memcpy(moved, pointer, had if had < nbytes else nbytes)
        native_try_free(route.large, pointer)
    return moved


def make_handler(pool, size_t threshold):
    """Return a handler that takes what has ``threshold`` bytes or more from a pool.

    It lives as long as the process, and the pool with it.

    Raises:
        MissingCapabilityError: The CPU cannot reach the memory of the pool's device.
    """
    cdef Route* route
    cdef Handler* theirs
    cdef Allocator* ours
    find_api()
    theirs = <Handler*>PyCapsule_GetPointer(
        <object>(<PyObject**>api[DEFAULT_HANDLER])[0], b"mem_handler"
    )
    functions = native_functions(pool)
    route = <Route*>c_calloc(1, sizeof(Route))
    if route is NULL:
        raise MemoryError("no memory for a handler of NumPy's allocations")
    route.large = <Context*><uintptr_t>functions.context
    route.threshold = threshold
    route.small = theirs.allocator
    strcpy(route.handler.name, b"madl")
    route.handler.version = 1
    ours = &route.handler.allocator
    ours.context = route
    ours.malloc = route_malloc
    ours.calloc = route_calloc
    ours.realloc = route_realloc
    ours.free = route_free
    handler = PyCapsule_New(&route.handler, b"mem_handler", NULL)
    Py_INCREF(handler)  # NumPy looks at it to the end
    return handler


def set_handler(handler):
    """Let a handler serve NumPy's allocations in this context; return the one before."""
    find_api()
    return (<SetHandler>api[SET_HANDLER])(<PyObject*>handler)
