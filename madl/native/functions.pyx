"""C functions over a pool of host memory, for other libraries to allocate with.

``malloc``, ``calloc``, ``realloc`` and ``free`` in the signatures of NumPy's data
allocator (NEP 49): a context first, and the size at free. None needs the interpreter's
lock: a bin serves most calls under the pool's guard. A miss takes the interpreter's
lock for a moment, so no caller may hold a lock that a Python thread could wait for.
"""

import threading

cimport cython
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc as c_calloc
from libc.stdlib cimport free as c_free
from libc.string cimport memcpy, memset

from madl.core.skiplist cimport word
from madl.hotpath._compiled cimport HotArena, HotPool, wipe
from madl.hotpath.bins cimport (
    NOTHING,
    TELL,
    WIPE,
    BinTable,
    Block,
    count_live,
    enter,
    leave,
    offset_of,
    pop,
    put_back,
    round_up,
)

from madl.backends.protocol import Capability
from madl.errors import MadlError, MissingCapabilityError
from madl.hotpath.shared import NativeFunctions

cdef extern from "Python.h":
    int Py_IsInitialized() noexcept nogil
    void PyErr_Fetch(PyObject** kind, PyObject** error, PyObject** traceback)
    void PyErr_Restore(PyObject* kind, PyObject* error, PyObject* traceback)
    int Py_AddPendingCall(int (*function)(void*) except -1, void* argument) noexcept

cdef size_t LARGEST_REQUEST = <size_t>-1 >> 2

cdef inline size_t _slot(uintptr_t address) noexcept nogil:
    return <size_t>((<uint64_t>(address >> 9) * <uint64_t>0x9E3779B97F4A7C15ULL) >> 32)


cdef bint _remember(Context* context, uintptr_t address, Block* block) noexcept nogil:
    """Note the block at an address; False when there is no memory for the note."""
    if 2 * context.used >= context.count and not _rebuild(context):
        return False
    _insert(context, address, block)
    if address < context.lowest:
        context.lowest = address
    if address > context.highest:
        context.highest = address
    return True


cdef bint _rebuild(Context* context) noexcept nogil:
    """Forget the removed entries; double the table if that is not enough."""
    cdef Entry* old = context.entries
    cdef size_t old_count = context.count
    cdef size_t count = old_count
    cdef size_t kept = 0
    cdef size_t i
    cdef Entry* entries
    for i in range(old_count):
        kept += old[i].address > 1
    while 4 * kept >= count:
        count *= 2
    entries = <Entry*>c_calloc(count, sizeof(Entry))
    if entries is NULL:
        return False
    context.entries = entries
    context.count = count
    context.used = 0
    for i in range(old_count):
        if old[i].address > 1:
            _insert(context, old[i].address, old[i].block)
    c_free(old)
    return True


cdef void _insert(Context* context, uintptr_t address, Block* block) noexcept nogil:
    cdef size_t mask = context.count - 1
    cdef size_t i = _slot(address) & mask
    while context.entries[i].address > 1:
        i = (i + 1) & mask
    context.used += context.entries[i].address == 0
    context.entries[i].address = address
    context.entries[i].block = block


cdef Entry* _find(Context* context, uintptr_t address) noexcept nogil:
    cdef size_t mask = context.count - 1
    cdef size_t i = _slot(address) & mask
    if address <= 1:
        return NULL  # these mark entries without a block
    while context.entries[i].address != address:
        if context.entries[i].address == 0:
            return NULL
        i = (i + 1) & mask
    return &context.entries[i]


cdef inline uintptr_t _address(Block* block) noexcept nogil:
    return <uintptr_t>(
        (<HotArena>block.arena).base + <unsigned long long>offset_of(block)
    )


cdef int _raise(void* kept) except -1 with gil:
    error = <object>kept
    Py_DECREF(error)
    raise error


cdef void _raise_later(error):
    """Raise an error in the main thread, to which those of signal handlers belong."""
    if threading.current_thread() is threading.main_thread():
        Py_INCREF(error)
        if Py_AddPendingCall(_raise, <void*>error):
            Py_DECREF(error)


cdef Block* _miss_whatever_comes(HotPool pool, size_t nbytes) except? NULL:
    """Miss; what interrupts that, such as a signal handler's exception, comes later.

    The caller could only call it a lack of memory.
    """
    try:
        return pool.bins.miss(nbytes, pool.lane)
    except (MadlError, MemoryError, ValueError, Warning):  # the pool's own answers
        raise
    except BaseException as error:
        interruption = error
    try:
        return pool.bins.miss(nbytes, pool.lane)
    finally:
        _raise_later(interruption)  # last: the next step of Python is late enough


cdef Block* _miss(Context* context, size_t nbytes) noexcept nogil:
    """Return a block that was not in its bin, or NULL; never an exception."""
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* traceback
    cdef Block* block = NULL
    if not Py_IsInitialized():
        return NULL  # the process is about to exit
    with gil:
        # The caller's exception, if one is in flight, must come out as it went in.
        PyErr_Fetch(&kind, &error, &traceback)
        try:
            block = _miss_whatever_comes(<HotPool>context.pool, nbytes)
        except BaseException:
            PyErr_Clear()
        PyErr_Restore(kind, error, traceback)
    return block


cdef void* native_malloc(void* opaque, size_t nbytes) noexcept nogil:
    cdef Context* context = <Context*>opaque
    cdef Block* block
    cdef bint is_noted
    cdef uintptr_t address
    if nbytes > LARGEST_REQUEST:
        return NULL
    if nbytes == 0:
        nbytes = 1  # a unique address, as C programs expect
    enter(context.bins)
    block = pop(context.bins, round_up(<word>nbytes))
    if block is NULL:
        leave(context.bins)
        block = _miss(context, nbytes)
        if block is NULL:
            return NULL
        enter(context.bins)
    count_live(context.bins, block, <word>nbytes)
    address = _address(block)
    is_noted = _remember(context, address, block)
    leave(context.bins)
    if not is_noted:
        _put_back(context, block)
    return <void*>address if is_noted else NULL


cdef void _put_back(Context* context, Block* block) noexcept nogil:
    """Do what a free does, without the guard."""
    cdef int left
    enter(context.bins)
    left = put_back(context.bins, block)
    leave(context.bins)
    if left == WIPE:
        left = wipe(context.bins, block)
    if left == TELL and Py_IsInitialized():
        _tell_closed_pool(context)


cdef void* native_calloc(void* opaque, size_t count, size_t nbytes) noexcept nogil:
    cdef void* pointer
    if nbytes and count > LARGEST_REQUEST // nbytes:
        return NULL
    pointer = native_malloc(opaque, count * nbytes)
    if pointer is not NULL:
        memset(pointer, 0, count * nbytes)
    return pointer


cdef void native_free(void* opaque, void* pointer, size_t nbytes) noexcept nogil:
    native_try_free(opaque, pointer)


cdef bint native_try_free(void* opaque, void* pointer) noexcept nogil:
    """Free what is the pool's; False, and nothing done, for other addresses."""
    cdef Context* context = <Context*>opaque
    cdef Entry* entry
    cdef Block* block = NULL
    cdef int left = NOTHING
    enter(context.bins)
    entry = _find(context, <uintptr_t>pointer)
    if entry is not NULL:
        entry.address = 1
        block = entry.block
        left = put_back(context.bins, block)
    leave(context.bins)
    if left == WIPE:
        left = wipe(context.bins, block)
    if left == TELL and Py_IsInitialized():
        _tell_closed_pool(context)
    return block is not NULL


cdef size_t native_nbytes(void* opaque, void* pointer) noexcept nogil:
    """Return the bytes that were asked for; 0 for an address that is not the pool's."""
    cdef Context* context = <Context*>opaque
    cdef Entry* entry
    cdef size_t nbytes = 0
    enter(context.bins)
    entry = _find(context, <uintptr_t>pointer)
    if entry is not NULL:
        nbytes = <size_t>entry.block.nbytes
    leave(context.bins)
    return nbytes


cdef void _tell_closed_pool(Context* context) noexcept nogil:
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* traceback
    with gil:
        PyErr_Fetch(&kind, &error, &traceback)
        try:
            (<HotPool>context.pool).lane.freed_after_close()
        except BaseException:
            PyErr_Clear()
        PyErr_Restore(kind, error, traceback)


cdef void* native_realloc(void* opaque, void* pointer, size_t nbytes) noexcept nogil:
    cdef void* moved
    cdef size_t had
    if pointer is NULL:
        return native_malloc(opaque, nbytes)
    had = native_nbytes(opaque, pointer)
    if had == 0:
        return NULL
    moved = native_malloc(opaque, nbytes)
    if moved is not NULL:
        memcpy(moved, pointer, had if had < nbytes else nbytes)
        native_free(opaque, pointer, had)
    return moved


def native_functions(HotPool pool):
    """Return C functions that allocate from a pool of host memory.

    From now on the pool is guarded, and it lives as long as the process.

    Raises:
        MissingCapabilityError: The CPU cannot reach the device's memory, or the pool is
            in debug mode: its guards are written by Python.
    """
    cdef Context* context
    if not pool.capabilities & Capability.HOST_ACCESS:
        raise MissingCapabilityError(
            pool.device, "host access, which C functions need", "a pool of device 'cpu'"
        )
    if getattr(pool, "is_debugging", False):
        raise MissingCapabilityError(
            pool.device,
            "guard bytes around what C functions allocate",
            "pass a pool of its own, made with debug=False",
        )
    context = <Context*>c_calloc(1, sizeof(Context))
    if context is NULL:
        raise MemoryError("no memory for the context of C functions")
    context.count = 1024
    context.entries = <Entry*>c_calloc(context.count, sizeof(Entry))
    if context.entries is NULL:
        c_free(context)
        raise MemoryError("no memory for the context of C functions")
    Py_INCREF(pool)
    context.pool = <PyObject*>pool
    context.bins = pool.table
    context.lowest = <uintptr_t>-1
    pool.bins.become_guarded()
    return NativeFunctions(
        context=<uintptr_t>context,
        malloc=<uintptr_t>&native_malloc,
        calloc=<uintptr_t>&native_calloc,
        realloc=<uintptr_t>&native_realloc,
        free=<uintptr_t>&native_free,
    )


def time_pairs(functions, size_t nbytes, Py_ssize_t count):
    """Call ``malloc`` and ``free`` from C ``count`` times: for the benchmarks."""
    cdef void* context = <void*><uintptr_t>functions.context
    cdef void* (*take)(void*, size_t) noexcept nogil
    cdef void (*give)(void*, void*, size_t) noexcept nogil
    cdef Py_ssize_t i
    take = <void* (*)(void*, size_t) noexcept nogil><uintptr_t>functions.malloc
    give = <void (*)(void*, void*, size_t) noexcept nogil><uintptr_t>functions.free
    with nogil:
        for i in range(count):
            give(context, take(context, nbytes), nbytes)
