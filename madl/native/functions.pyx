"""C functions over a pool of host memory, for other libraries to allocate with.

``malloc``, ``calloc``, ``realloc`` and ``free`` in the signatures of NumPy's data
allocator (NEP 49): a context first, and the size at free. None needs the interpreter's
lock: a bin serves most calls under the pool's guard. A miss takes the interpreter's
lock for a moment, so no caller may hold a lock that a Python thread could wait for.
"""

from sys import exc_info
from time import monotonic
from types import NoneType

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc as c_calloc
from libc.stdlib cimport free as c_free
from libc.string cimport memcpy, memset

from madl.core.skiplist cimport word
from madl.hotpath._compiled cimport HotArena, HotPool, keep_error, raise_soon, wipe
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

cdef enum:
    # How often a miss that is interrupted starts again, and for how long.
    MOST_TURNS = 100
    MOST_SECONDS = 1

cdef size_t LARGEST_REQUEST = <size_t>-1 >> 2

cdef inline size_t _slot(uintptr_t address) noexcept nogil:
    return <size_t>((<uint64_t>(address >> 9) * <uint64_t>0x9E3779B97F4A7C15ULL) >> 32)


cdef bint _reserve(Context* context) noexcept nogil:
    """Have an entry for one more address; whether there was memory for it.

    The guard is held, as after it, but not while memory is asked for.
    """
    while 2 * context.used >= context.count:
        if not _rebuild(context):
            return False
    return True


cdef uintptr_t _hand_out(Context* context, Block* block, size_t nbytes) noexcept nogil:
    """Count a block as live and note its address, for which there is an entry."""
    cdef uintptr_t address = _address(block)
    _insert(context, address, block)
    if address < context.lowest:
        context.lowest = address
    if address > context.highest:
        context.highest = address
    count_live(context.bins, block, <word>nbytes)
    return address


cdef bint _rebuild(Context* context) noexcept nogil:
    """Forget the removed entries; double the table if that is not enough.

    Returns:
        Whether there was memory for it; or another thread was faster.
    """
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
    leave(context.bins)
    entries = <Entry*>c_calloc(count, sizeof(Entry))
    enter(context.bins)
    if entries is NULL:
        return False
    if old is not context.entries:
        c_free(entries)
        return True
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


cdef Block* _miss_in_python(HotPool pool, size_t nbytes) noexcept:
    """Miss; what interrupts that, such as a signal handler's exception, comes later.

    The caller could only call it a lack of memory. Once there is a block, nothing of
    Python is called, so nothing can interrupt before the block has an owner.
    """
    cdef int turn
    handled = exc_info()[1]  # by the caller: it becomes the context of what is raised
    deadline = None
    for turn in range(MOST_TURNS):
        try:
            return pool.bins.miss(nbytes, pool.lane)
        except (MadlError, MemoryError) as refusal:
            # A reclaimer's error, if the pool did not refuse by itself.
            cause = refusal.__context__
            if not isinstance(cause, (MadlError, MemoryError, NoneType)):
                if cause is not handled:
                    keep_error(cause)
            return NULL
        except BaseException as error:
            if isinstance(error, ValueError) and pool.table.returns_every_free:
                return NULL  # it is closed
            keep_error(error)
        # A second Ctrl-C ends a reclaimer that does not return, but a storm of signals
        # is no lack of memory.
        if deadline is None:
            deadline = monotonic() + MOST_SECONDS
        elif monotonic() > deadline:
            return NULL
    return NULL


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
        block = _miss_in_python(<HotPool>context.pool, nbytes)
        raise_soon()
        PyErr_Restore(kind, error, traceback)
    return block


cdef void* native_malloc(void* opaque, size_t nbytes) noexcept nogil:
    cdef Context* context = <Context*>opaque
    cdef Block* block
    cdef uintptr_t address = 0
    cdef bint is_closed = False
    if nbytes > LARGEST_REQUEST:
        return NULL
    if nbytes == 0:
        nbytes = 1  # a unique address, as C programs expect
    enter(context.bins)
    if not _reserve(context):  # first: what is taken has an entry
        leave(context.bins)
        return NULL
    block = pop(context.bins, round_up(<word>nbytes))
    if block is not NULL:
        address = _hand_out(context, block, nbytes)
    leave(context.bins)
    if block is not NULL:
        return <void*>address
    block = _miss(context, nbytes)
    if block is NULL:
        return NULL
    enter(context.bins)
    if _reserve(context):  # again: other threads may have used it up
        address = _hand_out(context, block, nbytes)
    else:
        (<HotPool>context.pool).bins.take_back_later(block)
        is_closed = context.bins.returns_every_free
    leave(context.bins)
    if is_closed and Py_IsInitialized():
        _tell_closed_pool(context)
    return <void*>address


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
        _give_back_freed(<HotPool>context.pool)
        raise_soon()
        PyErr_Restore(kind, error, traceback)


cdef void _give_back_freed(HotPool pool) noexcept:
    """Let a closed pool give back what was freed; what interrupts that comes later."""
    cdef int turn
    for turn in range(MOST_TURNS):
        try:
            pool.lane.freed_after_close()
            return
        except MadlError:  # the device's; the next free tries again
            return
        except BaseException as error:
            keep_error(error)


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
