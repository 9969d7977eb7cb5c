"""``Memory`` and the bins in front of the arenas' indexes, compiled.

``fallback`` is the same in plain Python, with the same offsets to the byte. While C
code runs here it keeps the interpreter's lock and calls no Python, so every function is
atomic to other threads, to finalizers and to signal handlers: only what may call the
device, or wait for a thread that does, takes the pool's lock. A *guarded* pool has a
short lock around the rest too: where there is no interpreter lock, and where C code
allocates without holding it. What runs in it is ``noexcept nogil``, and returns a
status: an exception can start the collector, whose finalizers free, and would wait for
the guard that their own thread has.
"""

import threading

from cpython.buffer cimport PyBuffer_FillInfo, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

cimport cython
from madl.core.first_fit cimport FirstFit
from madl.core.skiplist cimport word
from madl.hotpath.bins cimport (
    LISTED,
    LIVE,
    MADL_HAS_INTERPRETER_LOCK,
    TAKEN,
    TELL,
    UNBINNED,
    WIPE,
    WIPED,
    Bin,
    BinTable,
    Block,
    Counts,
    Slot,
    count_live,
    discard,
    enter,
    leave,
    madl_at_fork,
    madl_enter,
    madl_guard,
    madl_journal,
    madl_leave,
    offset_of,
    pop,
    put_back,
    put_back_wiped,
    round_up,
    slot_for,
    take,
)
from madl.hotpath.fastcall cimport (
    PyMethodDef,
    PyType_Modified,
    PyTypeObject,
    replace_method,
)

from madl.errors import UnknownBlockError
from madl.hotpath.reentrancy import is_inside, locks_held
from madl.hotpath.shared import (
    LARGEST_REQUEST_NBYTES,
    Allocating,
    BlockState,
    array_of,
    known_dtypes,
    special,
)

cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject* value)
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1
    unsigned long PyThread_get_thread_ident() noexcept nogil
    Py_ssize_t PyList_GET_SIZE(PyObject* values) noexcept nogil
    PyObject* PyList_GET_ITEM(PyObject* values, Py_ssize_t i) noexcept nogil
    PyObject* PyEval_GetFrame() noexcept
    int Py_AddPendingCall(int (*function)(void*) except -1, void* argument) noexcept

cdef enum:
    SLAB_LENGTH = 256

cdef enum:
    # Statuses; the last two are those of ``core``.
    DONE = 0
    NOT_FREE = -1  # to an index, what is to be carved; or free already, what is freed
    NO_MEMORY = -2

cdef word LARGEST_REQUEST = LARGEST_REQUEST_NBYTES

cdef int wanted_watches = 0
cdef int active_watches = 0

# What all pools share: the count of watches, the pools, and what they write to.
cdef madl_guard guard = 0
cdef Counts* pools = NULL
cdef madl_journal* journals = NULL
cdef object number_tag = None


def set_watch_count(int count):
    """Tell every pool how many tags and recordings are active."""
    global wanted_watches, active_watches
    madl_enter(&guard)
    wanted_watches = count
    active_watches = wanted_watches + kept_count
    madl_leave(&guard)


cdef object kept_here = threading.local()
cdef int kept_count = 0  # of all threads


cdef void count_kept(int by) noexcept:
    """Count an error; while there are any, no allocation is served without a look."""
    global kept_count, active_watches
    madl_enter(&guard)
    kept_count += by
    active_watches = wanted_watches + kept_count
    madl_leave(&guard)


@cython.final
cdef class Kept:
    """What was raised in a thread while C code, which can raise nothing, called madl."""

    cdef list errors

    def __cinit__(self):
        self.errors = []

    def __del__(self):
        """Report what the thread, which ends, has not heard of."""
        while self.errors:
            report(self.pop())

    cdef pop(self):
        error = self.errors.pop(0)
        count_kept(-1)
        return error


cdef void report(error) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(None)


cdef void keep_error(error) noexcept:
    """Keep an error until this thread allocates; see ``raise_soon`` too.

    As of signals whose handler has yet to run, of each type one is kept. A thread of C
    code alone, with no frame of Python, hears of nothing.
    """
    cdef Kept kept
    if PyEval_GetFrame() is NULL:
        report(error)
        return
    try:
        kept = <Kept>getattr(kept_here, "kept", None)
        if kept is None:
            kept = kept_here.kept = Kept()
        if type(error) not in [type(other) for other in kept.errors]:
            kept.errors.append(error)
            count_kept(1)
    except MemoryError:
        report(error)


cdef void raise_soon() noexcept:
    """Let the main thread, where signal handlers run, raise at its next step of Python.

    Called last: a step before C code has what it needs would be interrupted once more.
    """
    if kept_count:
        Py_AddPendingCall(raise_in_main_thread, NULL)  # a full queue is no loss


cdef int raise_in_main_thread(void* nothing) except -1 with gil:
    raise_kept()
    return 0


def raise_kept():
    """Raise the first error of this thread that was kept, if there is one."""
    cdef Kept kept = <Kept>getattr(kept_here, "kept", None)
    if kept is not None and kept.errors:
        raise kept.pop()


cdef void guard_journals() noexcept nogil:
    """Let writers wait for each other: one of them has no interpreter lock."""
    cdef madl_journal* journal = journals
    while journal is not NULL:
        journal.is_guarded = True
        journal = journal.older


# A thread that is in a guard while another one forks is gone in the child: it would
# never leave. No Python runs between these calls, so holding all guards is safe.
cdef void enter_all() noexcept nogil:
    cdef Counts* shared
    madl_enter(&guard)
    shared = pools
    while shared is not NULL:
        madl_enter(&shared.guard)
        shared = shared.next


cdef void leave_all() noexcept nogil:
    cdef Counts* shared = pools
    while shared is not NULL:
        madl_leave(&shared.guard)
        shared = shared.next
    madl_leave(&guard)


cdef void leave_all_in_child() noexcept nogil:
    """Also write no more: the journals are the parent's."""
    global journals
    cdef Counts* shared = pools
    while journals is not NULL:  # a thread that had one is not there any more
        journals.guard = journals.is_busy = journals.pins = 0
        journals = journals.older
    while shared is not NULL:
        shared.journal = NULL
        shared = shared.next
    leave_all()


cdef void write_to(madl_journal* newest, number) noexcept:
    """Let all pools write to a chain of journals from now on.

    ``number(tag)`` returns what these call a tag; ``None`` where there is no journal.
    What is to be older than a journal is in ``linked``: under their guards, threads
    without the interpreter's lock go along the chain twice, and it has to be the same.
    """
    global journals, number_tag
    cdef Counts* shared
    cdef madl_journal* journal = newest
    number_tag = number
    enter_all()
    while journal is not NULL:
        journal.older = journal.linked
        journal = journal.older
    journals = newest
    shared = pools
    while shared is not NULL:
        shared.journal = newest
        if shared.is_guarded:
            guard_journals()
        shared = shared.next
    leave_all()


cdef void enlist(Counts* shared) noexcept nogil:
    """Let forks and journals know of a pool."""
    global pools
    madl_enter(&guard)
    shared.journal = journals
    if shared.is_guarded:
        guard_journals()
    shared.next = pools
    if pools is not NULL:
        pools.previous = shared
    pools = shared
    madl_leave(&guard)


cdef void delist(Counts* shared) noexcept nogil:
    global pools
    madl_enter(&guard)
    if shared.next is not NULL:
        shared.next.previous = shared.previous
    if shared.previous is not NULL:
        shared.previous.next = shared.next
    elif pools is shared:
        pools = shared.next
    madl_leave(&guard)


if madl_at_fork(enter_all, leave_all, leave_all_in_child):
    raise MemoryError("no memory for what a fork needs")


cdef struct Slab:
    Slab* next
    Block blocks[SLAB_LENGTH]


cdef class HotArena:
    """What the hot path knows of an arena."""

    def __init__(self, FirstFit blocks, address, *, bint is_dedicated):
        self.blocks = blocks
        self.start = address
        self.base = 0 if address is None else address
        self.is_dedicated = is_dedicated

    # Written out, as those of Bins and Shared that threads race to read: where there is
    # no interpreter lock, the properties that Cython makes lock the object, and a fork
    # may leave that lock to a thread that is not there in the child.
    @property
    def address(self):
        return self.start


cdef int wipe(BinTable* bins, Block* block) noexcept nogil:
    """Set a freed block of host memory to zero and put it back, as ``put_back`` does.

    Not in the guard: it may take a while, and the block is in no list.
    """
    cdef int left
    memset(
        <void*><uintptr_t>(
            (<HotArena>block.arena).base + <unsigned long long>offset_of(block)
        ),
        0,
        <size_t>block.bin.capacity,
    )
    enter(bins)
    left = put_back_wiped(bins, block)
    leave(bins)
    return left


@cython.final
@cython.freelist(512)
@cython.no_gc
cdef class Memory:
    """A piece of device memory, held until ``free()`` or until it is dropped.

    Made by ``Pool.allocate`` and ``madl.allocate``. Every method raises
    ``FreedMemoryError`` after ``free()``. A handle may be passed between threads; two
    threads must not free, resize or write the same one at once.
    """

    def __init__(self):
        raise TypeError("a Memory is made by Pool.allocate or madl.allocate")

    def free(self):
        """Give the memory back to its pool.

        The next ``allocate`` can hand the block out again, so nothing may read or
        write it any more. While arrays or memoryviews of it live, the handle is dead
        at once and the block goes back with the last of them.

        Raises:
            FreedMemoryError: It was freed before.
            ValueError: It is a slice; free the memory that it was cut from.

        Complexity: O(1). Thread-safe; takes no lock and never calls the device.
        """
        cdef Block* block = NULL
        cdef PyObject* root = NULL
        if self.block is not NULL:
            enter((<HotPool>self.owner).table)  # two threads may free the same handle
            block = self.block
            self.block = NULL
            if block is not NULL:
                root = self.root
                self.root = NULL
            leave((<HotPool>self.owner).table)
        if block is NULL:
            raise special["refuse_free"](self)
        if root is NULL:
            (<HotPool>self.owner).take_back(block)
        else:
            kept = owned(root)
            if block.watch is not NULL:
                (<object>block.watch).is_viewed = True

    def __dealloc__(self):
        if self.block is not NULL and self.root is NULL:
            if self.block.watch is NULL:
                (<HotPool>self.owner).put_back(self.block)
            else:
                (<HotPool>self.owner).take_back_dropped(self.block)
        Py_XDECREF(self.root)
        Py_XDECREF(self.owner)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self.block is not NULL:
            self.free()

    @property
    def nbytes(self):
        """Bytes asked for."""
        return self.size

    @property
    def pool(self):
        """The pool that the memory came from."""
        return head_of(pool_of(self))

    def as_array(self, dtype="uint8", shape=None):
        """Return a NumPy array over the memory, without a copy.

        Args:
            dtype: Anything ``numpy.dtype`` accepts.
            shape: An int or a tuple; all of the memory as one dimension when None.

        Returns:
            A writable, C-contiguous ``numpy.ndarray``. The block stays live until the
            array and all arrays made from it are gone, whatever is freed before.

        Raises:
            ValueError: The array would be larger than the memory.
            MissingCapabilityError: The CPU cannot reach the device's memory.
        """
        array = array_at_once(self, dtype, shape)
        return special["as_array"](self, dtype, shape) if array is None else array

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        # The view's own root is the exporter, so nothing is left to release here.
        PyObject_GetBuffer(special["memoryview"](self), buffer, flags)

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        return special["cut"](self, part)

    def __reduce_ex__(self, protocol):
        raise special["refuse_pickle"](self)

    def __repr__(self):
        return special["repr"](self)


def attach(dict methods):
    """Add methods and properties to ``Memory``, but those that it has in C."""
    cdef dict attributes = <dict><object>(<PyTypeObject*>Memory).tp_dict
    for name, method in methods.items():
        attributes.setdefault(name, method)
    PyType_Modified(<PyTypeObject*>Memory)


def pool_of(Memory memory not None):
    """Return what serves the memory's stream: the pool, or one of its lanes."""
    if memory.owner is NULL:
        raise TypeError("a Memory is made by Pool.allocate or madl.allocate")
    return <object>memory.owner


def root_of(Memory memory not None):
    """Return what keeps the block for views, or what a slice was cut from."""
    return owned(new_reference_to_root(memory))


def place_of(Memory memory not None):
    """Return arena, offset and capacity; ``None`` when it has no block."""
    cdef Block* block = memory.block
    if block is NULL:
        return None
    arena = None if block.arena is NULL else <object>block.arena
    return arena, offset_of(block), block.bin.capacity


def watch_of(Memory memory not None):
    """Return what hears of the block's free."""
    if memory.block is NULL or memory.block.watch is NULL:
        return None
    return <object>memory.block.watch


def is_viewed(Memory memory not None):
    """Return whether any array or memoryview of a memory lives."""
    return memory.root is not NULL and Py_REFCNT(memory.root) > 1


def keep_by(Memory memory not None, Root root not None):
    """Let a root hold the block through a keeper of its own; the first wins.

    Returns:
        The one that holds it; ``None`` where the handle has no block any more, or
        another one than the root shows.
    """
    cdef HotPool owner = <HotPool>memory.owner
    cdef Memory keeper = owner.handle(NULL, memory.size)
    cdef PyObject* kept = NULL
    root.keeper = keeper
    enter(owner.table)
    if memory.block is not NULL and is_shown_by(memory, root):
        if memory.root is NULL:
            keeper.block = memory.block
            Py_INCREF(root)
            memory.root = <PyObject*>root
        kept = memory.root
        Py_INCREF(<object>kept)
    leave(owner.table)
    return owned(kept)


def detach(Memory memory not None):
    """Make the handle the block's only keeper again, unless a view lives.

    Returns:
        Whether it is.
    """
    cdef HotPool owner = <HotPool>memory.owner
    cdef PyObject* root = NULL
    cdef bint is_alone
    enter(owner.table)
    is_alone = take_root(memory, &root)
    leave(owner.table)
    Py_XDECREF(root)
    return is_alone


def exchange(Memory memory not None, Memory other not None, arena, word offset):
    """Swap blocks and sizes of two handles of one pool.

    Returns:
        Whether it was done: not while a view lives, nor where the block of the first
        lies elsewhere by now, or was freed.
    """
    cdef HotPool owner = <HotPool>memory.owner
    cdef PyObject* place = NULL if arena is None else <PyObject*>arena
    cdef PyObject* root = NULL
    cdef PyObject* other_root = NULL
    cdef bint is_there
    enter(owner.table)
    is_there = (
        memory.block is not NULL
        and memory.block.arena is place
        and offset_of(memory.block) == offset
        and take_root(other, &other_root)
        and take_root(memory, &root)
    )
    if is_there:
        memory.block, other.block = other.block, memory.block
        # A lane may have been merged by now.
        memory.owner, other.owner = other.owner, memory.owner
        memory.size, other.size = other.size, memory.size
    leave(owner.table)
    Py_XDECREF(root)
    Py_XDECREF(other_root)
    return is_there


def unbin(Memory memory not None):
    """Let the block go to no bin when it is freed, but wait to be taken back."""
    cdef HotPool owner = <HotPool>memory.owner
    enter(owner.table)
    if memory.block is not NULL:
        memory.block.offset_and_flags |= UNBINNED
    leave(owner.table)


cdef bint is_shown_by(Memory memory, Root root) noexcept:
    """Return whether a root has the block's address and size, or shows nothing."""
    cdef HotArena arena
    if root.nbytes == 0:
        return True
    if memory.block.arena is NULL or root.nbytes != memory.size:
        return False
    arena = <HotArena>memory.block.arena
    return <uintptr_t>root.address == <uintptr_t>(
        arena.base + <unsigned long long>offset_of(memory.block)
    )


cdef bint take_root(Memory memory, PyObject** root) noexcept:
    """Take a root that has no other reference, and let it keep nothing."""
    if memory.root is NULL:
        return True
    if type(<object>memory.root) is not Root or Py_REFCNT(memory.root) > 1:
        return False
    root[0] = memory.root
    memory.root = NULL
    (<Root>root[0]).keeper.block = NULL
    return True


cdef PyObject* new_reference_to_root(Memory memory) noexcept:
    """Return the root, or NULL; another thread may be about to drop it."""
    cdef PyObject* root
    if memory.root is NULL:
        return NULL
    enter((<HotPool>memory.owner).table)
    root = memory.root
    Py_XINCREF(root)
    leave((<HotPool>memory.owner).table)
    return root


cdef object owned(PyObject* reference):
    """Return what a new reference refers to; ``None`` for NULL."""
    if reference is NULL:
        return None
    made = <object>reference
    Py_DECREF(made)
    return made


cdef object array_at_once(Memory memory, dtype, shape):
    """Return an array of a known data type; ``None`` leaves it to the longer way."""
    cdef PyObject* reference
    cdef Root root
    if memory.root is NULL or type(<object>memory.root) is not Root:
        return None
    try:
        element = known_dtypes[dtype]
        # Only now: a data type's hash may free the memory.
        reference = new_reference_to_root(memory)
        if reference is NULL:
            return None
        root = <Root>reference
        Py_DECREF(root)
        if root.nbytes == 0:  # NumPy would take memory of its own
            return None
        if shape is None:
            shape, rest = divmod(root.nbytes, <word>element.itemsize)
            if rest:
                return None
        elif type(shape) is not tuple or len(shape) == 1:
            length = shape[0] if type(shape) is tuple else shape
            if type(length) is not int or length < 0:  # to NumPy, -1 is what fits
                return None
        return array_of[0](shape, element, root)
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


@cython.final
@cython.no_gc
cdef class Root:
    """The end of every view's chain of owners; it keeps the block until it ends.

    The collector does not know it, so it ends with its last view only.
    """

    @staticmethod
    def over(uintptr_t address, word nbytes):
        """Return a root without a keeper yet."""
        cdef Root root = Root.__new__(Root)
        root.address = <void*>address
        root.nbytes = nbytes
        return root

    def view(self):
        """Return a writable view of the bytes."""
        return memoryview(self)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.address, self.nbytes, False, flags)


cdef inline bint is_used(Bin* bin) noexcept nogil:
    return bin.placed != 0 or bin.is_listed


cdef void mark_listed(Block* block) noexcept nogil:
    while block is not NULL:
        block.offset_and_flags |= LISTED
        block = block.next


cdef class Shared:
    """What a pool and its lanes share: the lock, and all that is counted."""

    def __cinit__(self):
        self.lock_object = threading.Lock()
        self.counts.is_guarded = not MADL_HAS_INTERPRETER_LOCK
        enlist(&self.counts)

    def __dealloc__(self):
        delist(&self.counts)

    def renew_lock(self):
        """Make the lock anew, in a forked child."""
        self.lock_object = threading.Lock()
        self.counts.lock_holder = 0

    def recount(self, states):
        """Count nothing: what is counted changes together with the blocks."""
        return True

    @property
    def lock(self):
        """The pool's lock."""
        return self.lock_object

    @property
    def lock_holder(self):
        """The thread that has it, or 0."""
        return self.counts.lock_holder

    @lock_holder.setter
    def lock_holder(self, unsigned long ident):
        self.counts.lock_holder = ident

    @property
    def was_interrupted(self):
        """Whether a signal handler has raised in the middle of a change."""
        return self.counts.was_interrupted

    @was_interrupted.setter
    def was_interrupted(self, bint value):
        self.counts.was_interrupted = value

    @property
    def binned_nbytes(self):
        """Bytes of what is placed and free."""
        return self.counts.binned_nbytes

    @property
    def live_nbytes(self):
        """Bytes of what is live, as asked for."""
        return self.counts.live_nbytes

    @property
    def live_high_water(self):
        """The most of them so far."""
        return self.counts.live_high_water

    @property
    def allocation_count(self):
        """Allocations so far."""
        return self.counts.allocation_count

    @property
    def placed_count(self):
        """Blocks that were taken from a bin or placed, so far."""
        return self.counts.placed_count


cdef class Bins:
    """The blocks of one lane: in bins by capacity, returned, or live."""

    def __cinit__(self):
        self.small_arenas = []
        self.large_arenas = []
        self.bands = (self.small_arenas, self.large_arenas)
        self.small_nbytes = LARGEST_REQUEST
        self.largest = LARGEST_REQUEST
        self.shared = Shared()
        self.users = {}
        self.table.shared = &self.shared.counts
        self.table.slot_count = 256
        self.table.slots = <Slot*>calloc(self.table.slot_count, sizeof(Slot))
        if self.table.slots is NULL:
            raise MemoryError("no memory for the bins of a pool")

    def __dealloc__(self):
        cdef Py_ssize_t i
        cdef Slab* slab = self.slabs
        cdef Slab* following
        if self.table.slots is not NULL:
            for i in range(self.table.slot_count):
                free(self.table.slots[i].bin)
            free(self.table.slots)
        while slab is not NULL:
            following = slab.next
            free(slab)
            slab = following

    def join(self, Bins other not None):
        """Share the lock and all that is counted with the bins of another lane."""
        self.shared = other.shared
        self.table.shared = &self.shared.counts

    @property
    def most_nbytes(self):
        """Larger requests, and all of a debug pool, go to the slow path."""
        return self.largest

    @most_nbytes.setter
    def most_nbytes(self, word value):
        self.largest = value

    @cython.final
    cdef void become_guarded(self) noexcept:
        self.table.shared.is_guarded = True
        guard_journals()

    @property
    def stream_number(self):
        """What recordings call its stream; lanes count 1, 2, ..."""
        return self.table.stream_number

    @stream_number.setter
    def stream_number(self, word number):
        self.table.stream_number = number

    def find(self, word nbytes, lane):
        """Return a block of a bin, of the index, or of the slow path; in flight."""
        cdef Block* block
        if nbytes == 0:
            return self.reserve_block(0)
        enter(&self.table)
        block = pop(&self.table, round_up(nbytes))
        if block is not NULL:
            take(&self.table, block, PyThread_get_thread_ident())
        leave(&self.table)
        if block is NULL:
            block = self.miss(nbytes, lane)
        return <uintptr_t>block

    @cython.final
    cdef Block* miss(self, word nbytes, lane) except NULL:
        """Return a block for a size whose bin is empty; it counts as binned still."""
        cdef Block* block = NULL
        cdef word capacity = round_up(nbytes)
        cdef word placed_before = self.table.shared.placed_count
        cdef unsigned long ident
        cdef int status = DONE
        if (
            MADL_HAS_INTERPRETER_LOCK
            and self.table.shared.lock_holder == 0
            and self.table.returned is NULL
        ):
            if not self.table.shared.was_interrupted:
                block = self.place(capacity, &status)
        elif is_inside():
            try:
                block = <Block*><uintptr_t>lane.place_dedicated(nbytes)
            except BaseException:
                self.return_taken(placed_before)
                raise
        else:
            ident = PyThread_get_thread_ident()
            with self.shared.lock_object:
                self.table.shared.lock_holder = ident
                locks_held[ident] = 1
                try:
                    if not self.table.shared.was_interrupted:
                        while returned := self.take_back_returned():
                            lane.take_back(returned)
                        block = self.place(capacity, &status)
                except BaseException:
                    self.table.shared.was_interrupted = True
                    raise
                finally:
                    locks_held[ident] = 0
                    self.table.shared.lock_holder = 0
        self.raise_for(status)
        if block is NULL:
            try:
                block = <Block*><uintptr_t>lane.place_slowly(nbytes, capacity, 0)
            except BaseException:
                self.return_taken(placed_before)
                raise
        if self.zeroes_new:
            try:
                lane.zero_new(<uintptr_t>block)
            except BaseException:
                self.return_taken(placed_before)
                raise
        return block

    @cython.final
    cdef Block* place(self, word capacity, int* status) noexcept nogil:
        """Take a block from where no page is missing; else NULL, with a status."""
        cdef PyObject* band = <PyObject*>self.small_arenas
        cdef PyObject* arena
        cdef Block* block = NULL
        cdef Py_ssize_t i
        cdef word offset
        if capacity > self.small_nbytes:
            band = <PyObject*>self.large_arenas
        for i in range(PyList_GET_SIZE(band)):  # an index is not under the guard
            if not (<HotArena>PyList_GET_ITEM(band, i)).blocks.reserve():
                status[0] = NO_MEMORY
                return NULL
        enter(&self.table)
        self.miss_count += 1
        status[0] = self.reserve(capacity)  # first: what is carved has a record
        if status[0] == DONE:
            status[0] = self.flush_listed(&self.table.filled_large)
        if status[0] == DONE and self.table.shared.binned_nbytes > self.leash_nbytes:
            status[0] = self.flush_listed(&self.table.filled_small)
        if status[0] == DONE:
            for i in range(PyList_GET_SIZE(band)):
                arena = PyList_GET_ITEM(band, i)
                offset = (<HotArena>arena).blocks.allocate(capacity)
                if offset >= 0:
                    block = self.new_block(arena, offset, capacity)
                    break
        leave(&self.table)
        return block

    def reserve_block(self, word capacity):
        """Return a record for a block that has no place yet; in flight.

        It comes first: what is carved from an index has a record then.

        Raises:
            MemoryError: There is none for it.
        """
        cdef Block* block = NULL
        cdef int status
        enter(&self.table)
        status = self.reserve(capacity)
        if status == DONE:
            block = self.new_block(NULL, 0, capacity)
        leave(&self.table)
        self.raise_for(status)
        return <uintptr_t>block

    def place_reserved(
        self, uintptr_t token, HotArena arena, word offset, *, bint is_binned=True
    ):
        """Note where a block has been placed, and return it; it counts as binned."""
        cdef Block* block = <Block*>token
        enter(&self.table)
        block.arena = <PyObject*>arena
        block.offset_and_flags |= offset | (0 if is_binned else UNBINNED)
        self.table.shared.binned_nbytes += block.bin.capacity
        leave(&self.table)
        return token

    def drop_reserved(self, uintptr_t token):
        """Give up a block that was placed nowhere."""
        enter(&self.table)
        discard(&self.table, <Block*>token)
        leave(&self.table)

    @cython.final
    cdef int raise_for(self, int status) except -1:
        """Raise what a status stands for; not in the guard."""
        if status == NO_MEMORY:
            raise MemoryError("no memory for the records of a pool's blocks")
        if status == NOT_FREE:
            raise UnknownBlockError(
                offset_of(self.refused), self.refused.bin.capacity
            )
        return 0

    @cython.final
    cdef int reserve(self, word capacity) noexcept nogil:
        """Have a record and a bin for a block to be placed; return a status.

        The guard is held, as after it, but not while memory is asked for: ``malloc``
        may wait, and other threads use up what was there. So all is looked at again.
        """
        cdef Slab* slab
        cdef Slot* slot
        cdef Bin* bin
        while True:
            slot = slot_for(self.table.slots, self.table.slot_count, capacity)
            if self.table.unused is NULL:
                leave(&self.table)
                slab = <Slab*>malloc(sizeof(Slab))
                enter(&self.table)
                if slab is NULL:
                    return NO_MEMORY
                self.add_slab(slab)
            elif slot.bin is not NULL:
                return DONE
            elif 2 * self.table.bin_count >= self.table.slot_count:
                if not self.rebuild_slots():
                    return NO_MEMORY
            else:
                leave(&self.table)
                bin = <Bin*>calloc(1, sizeof(Bin))
                enter(&self.table)
                if bin is NULL:
                    return NO_MEMORY
                self.add_bin(bin, capacity)

    @cython.final
    cdef Block* new_block(
        self, PyObject* arena, word offset, word capacity
    ) noexcept nogil:
        """Return the block for a place; ``reserve`` has been called for it."""
        cdef Bin* bin = slot_for(self.table.slots, self.table.slot_count, capacity).bin
        cdef Block* block = self.table.unused
        self.table.unused = block.next
        block.offset_and_flags = offset | self.table.first_flags
        block.nbytes = 0
        block.bin = bin
        block.arena = arena
        block.watch = NULL
        bin.placed += 1
        if arena is not NULL:
            self.table.shared.binned_nbytes += capacity
        take(&self.table, block, PyThread_get_thread_ident())
        return block

    @cython.final
    cdef void add_slab(self, Slab* slab) noexcept nogil:
        cdef Py_ssize_t i
        slab.next = self.slabs
        self.slabs = slab
        for i in range(SLAB_LENGTH - 1, -1, -1):
            slab.blocks[i].bin = NULL
            slab.blocks[i].next = self.table.unused
            self.table.unused = &slab.blocks[i]

    @cython.final
    cdef void add_bin(self, Bin* bin, word capacity) noexcept nogil:
        """Add the bin of a capacity, unless another thread has, or took the slot."""
        cdef Slot* slot = slot_for(self.table.slots, self.table.slot_count, capacity)
        if slot.bin is not NULL or 2 * self.table.bin_count >= self.table.slot_count:
            free(bin)
            return
        slot.bin = bin
        slot.capacity = bin.capacity = capacity
        bin.is_large = capacity > self.small_nbytes
        self.table.bin_count += 1

    @cython.final
    cdef bint rebuild_slots(self) noexcept nogil:
        """Drop the bins that no block uses; double the slots if that is not enough.

        The guard is left while memory is asked for.

        Returns:
            Whether there was memory for it; or another thread was faster.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        cdef Py_ssize_t count = self.table.slot_count
        cdef Slot* old = self.table.slots
        cdef Slot* new
        for i in range(self.table.slot_count):
            kept += old[i].bin is not NULL and is_used(old[i].bin)
        while 4 * kept >= count:
            count *= 2
        leave(&self.table)
        new = <Slot*>calloc(count, sizeof(Slot))
        enter(&self.table)
        if new is NULL:
            return False
        if old is not self.table.slots:
            free(new)
            return True
        kept = 0
        for i in range(self.table.slot_count):
            if old[i].bin is NULL:
                continue
            if is_used(old[i].bin):
                slot_for(new, count, old[i].capacity)[0] = old[i]
                kept += 1
            else:
                free(old[i].bin)
        self.table.slots = new
        self.table.slot_count = count
        self.table.bin_count = kept
        free(old)
        return True

    @cython.final
    cdef int unplace_block(self, Block* block) noexcept nogil:
        """Give a free block back to the index, where it coalesces; return a status.

        The index has room for it: see ``FirstFit.placed_count``.
        """
        cdef int status = (<HotArena>block.arena).blocks.try_free(
            offset_of(block), block.bin.capacity
        )
        if status == DONE:
            discard(&self.table, block)
        else:
            self.refused = block
        return status

    @cython.final
    cdef int flush_listed(self, Bin** filled) noexcept nogil:
        """Give the blocks of all listed bins back to the index; return a status."""
        cdef Bin* bin
        cdef Block* following
        cdef int status
        while filled[0] is not NULL:
            bin = filled[0]
            while bin.top is not NULL:
                following = bin.top.next
                status = self.unplace_block(bin.top)
                if status != DONE:
                    return status
                bin.top = following
            filled[0] = bin.next_filled
            bin.is_listed = False
        return DONE

    def flush(self):
        """Give all binned blocks back to the index, where they coalesce."""
        cdef int status
        enter(&self.table)
        status = self.flush_listed(&self.table.filled_large)
        if status == DONE:
            status = self.flush_listed(&self.table.filled_small)
        leave(&self.table)
        self.raise_for(status)

    def take_back_returned(self):
        """Give returned blocks back to the index; return the first that may not be.

        It is in a dedicated arena, is used by other streams, or is asked for by the
        slow path. 0 when none is left.
        """
        cdef Block* block
        cdef Block* following
        cdef Block* found = NULL
        cdef int status = DONE
        cdef bint asks = self.asks or len(self.users) > 0
        enter(&self.table)
        while self.table.returned is not NULL and found is NULL and status == DONE:
            block = self.table.returned
            following = block.next
            if asks or (<HotArena>block.arena).is_dedicated:
                found = block
            else:
                status = self.unplace_block(block)
            if status == DONE:
                self.table.returned = following
        leave(&self.table)
        self.raise_for(status)
        return <uintptr_t>found

    def unplace(self, uintptr_t token):
        """Give a block back to the index; return its arena if it is dedicated."""
        cdef Block* block = <Block*>token
        cdef HotArena arena = <HotArena>block.arena
        cdef int status
        enter(&self.table)
        status = self.unplace_block(block)
        leave(&self.table)
        self.raise_for(status)
        return arena if arena.is_dedicated else None

    @cython.final
    cdef void return_taken(self, word placed_before) noexcept:
        cdef Slab* slab
        cdef Block* block
        cdef Py_ssize_t i
        cdef Block* thread = <Block*>PyThread_get_thread_ident()
        if self.table.shared.placed_count == placed_before:
            return
        enter(&self.table)
        slab = self.slabs
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                block = &slab.blocks[i]
                if (
                    block.bin is not NULL
                    and block.offset_and_flags & TAKEN
                    and block.next == thread
                    and block.nbytes > placed_before
                ):
                    self.take_back_later(block)
            slab = slab.next
        leave(&self.table)

    @cython.final
    cdef void take_back_later(self, Block* block) noexcept nogil:
        block.offset_and_flags &= ~<word>TAKEN
        if block.arena is NULL:
            discard(&self.table, block)
        else:
            block.next = self.table.returned
            self.table.returned = block

    def return_since(self, word placed_before):
        """Return the blocks that this thread took since then and has not handed out.

        For an allocation that ends with an error.
        """
        self.return_taken(placed_before)

    def gather_lost(self):
        """Return every block that is free, in no list and not in flight.

        For a change that was interrupted. The lock is held. Atomic: what a thread has
        in flight, it has marked.
        """
        cdef Py_ssize_t i
        cdef Slab* slab
        cdef Block* block
        enter(&self.table)
        for i in range(self.table.slot_count):
            if self.table.slots[i].bin is not NULL:
                mark_listed(self.table.slots[i].bin.top)
        mark_listed(self.table.returned)
        slab = self.slabs
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                block = &slab.blocks[i]
                if block.bin is NULL:
                    continue
                if not block.offset_and_flags & (LIVE | TAKEN | LISTED):
                    self.take_back_later(block)
                block.offset_and_flags &= ~<word>LISTED
            slab = slab.next
        leave(&self.table)
        return True

    @property
    def bin_count(self):
        """Bins there are, empty ones too."""
        return self.table.bin_count

    @property
    def has_returned(self):
        """Whether blocks wait that belong to no bin."""
        return self.table.returned is not NULL

    def pass_by(self, *, bint zeroes_new, bint wipes_freed, bint asks):
        """Put no block into a bin from now on; none is placed yet.

        Args:
            zeroes_new: The slow path sees each block before it is handed out.
            wipes_freed: The host sets what is freed to zero before it is free.
            asks: The slow path takes each block back.
        """
        self.zeroes_new = zeroes_new
        self.asks = asks
        self.table.first_flags = UNBINNED | (WIPED if wipes_freed else 0)

    def keep_contents(self):
        """Let what is live keep its content when it is freed."""
        cdef Slab* slab = self.slabs
        cdef Py_ssize_t i
        enter(&self.table)
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                slab.blocks[i].offset_and_flags &= ~<word>WIPED
            slab = slab.next
        leave(&self.table)

    def place_of(self, uintptr_t token):
        """Return arena, offset and capacity of a block; ``None`` without bytes."""
        cdef Block* block = <Block*>token
        if block.arena is NULL:
            return None
        return <object>block.arena, offset_of(block), block.bin.capacity

    def unbin_all(self):
        """Let what is live go to no bin when it is freed, but wait to be taken back."""
        cdef Slab* slab = self.slabs
        cdef Py_ssize_t i
        enter(&self.table)
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                if slab.blocks[i].bin is not NULL:
                    slab.blocks[i].offset_and_flags |= UNBINNED
            slab = slab.next
        leave(&self.table)

    def return_every_free(self):
        """Let no free go to a bin any more; the slow path hears of each."""
        self.table.returns_every_free = True

    def states(self):
        """Return every placed block, live or free."""
        cdef Slab* slab
        cdef Block[SLAB_LENGTH] seen
        cdef Py_ssize_t i, count
        states = []
        enter(&self.table)
        slab = self.slabs
        leave(&self.table)
        while slab is not NULL:
            count = 0
            enter(&self.table)
            for i in range(SLAB_LENGTH):
                if slab.blocks[i].bin is NULL or slab.blocks[i].arena is NULL:
                    continue
                seen[count] = slab.blocks[i]
                Py_XINCREF(seen[count].watch)
                count += 1
            leave(&self.table)
            try:
                for i in range(count):
                    states.append(_state(&seen[i]))
            finally:
                for i in range(count):
                    Py_XDECREF(seen[i].watch)
            slab = slab.next
        return states


cdef class HotPool:
    """Bins, and the slow path behind them. ``Pool`` adds all that is not hot."""

    def __cinit__(self, *arguments, **options):
        self.bins = Bins()
        self.table = &self.bins.table
        self.lanes_seen = {}

    def __init__(self, lane, dict lanes_seen not None, HotPool head=None):
        self.lane = lane
        self.lanes_seen = lanes_seen
        self.head = head

    @property
    def _lane(self):
        return self.lane

    def allocate(self, nbytes, *, alignment=None, stream=None, tag=None):
        return self.lane.allocate_with(self, nbytes, alignment, stream, tag)

    @cython.final
    cdef int take_back(self, Block* block) except -1:
        """Do what a free does: tell the watch, and put the block into its bin."""
        if block.watch is not NULL:
            try:
                self.tell_watch(block, False)
            finally:
                self.put_back(block)
        else:
            self.put_back(block)
        return 0

    @cython.final
    cdef void take_back_dropped(self, Block* block) noexcept:
        """Do so for a watched block that was dropped without ``free()``.

        What is raised goes to ``sys.unraisablehook`` from here: a handle that ends has
        more to give back.
        """
        try:
            self.tell_watch(block, True)
        except BaseException as error:
            PyErr_SetObject(type(error), error)
            PyErr_WriteUnraisable(Memory)
        self.put_back(block)

    @cython.final
    cdef int tell_watch(self, Block* block, bint is_dropped) except -1:
        cdef PyObject* watch
        enter(self.table)  # Bins.states looks at it
        watch = block.watch
        block.watch = NULL
        leave(self.table)
        kept = <object>watch
        Py_DECREF(kept)  # the block's own reference
        if is_dropped:
            kept.dropped()
        else:
            kept.freed()
        return 0

    @cython.final
    cdef int put_back(self, Block* block) except -1:
        cdef int left
        enter(self.table)
        left = put_back(self.table, block)
        leave(self.table)
        if left == WIPE:
            left = wipe(self.table, block)
        if left == TELL:
            self.lane.freed_after_close()
        return 0

    @cython.final
    cdef Memory handle(self, Block* block, word size):
        cdef Memory memory = Memory.__new__(Memory)
        Py_INCREF(self)
        memory.owner = <PyObject*>self
        memory.size = size
        memory.block = block
        return memory


def bins_of(HotPool pool not None):
    """Return the bins of a pool, or of one of its lanes."""
    return pool.bins


def lane_of(HotPool pool not None):
    """Return the slow path of a pool, or of one of its lanes."""
    return pool.lane


def head_of(HotPool pool not None):
    """Return the pool itself, for whatever is one of its lanes."""
    return pool if pool.head is None else pool.head


def hand_out(HotPool pool not None, uintptr_t token, word nbytes, watch):
    """Count a block as live and return its handle."""
    cdef Block* block = <Block*>token
    cdef Memory memory = pool.handle(NULL, nbytes)
    cdef word tag_number = 0
    if watch is not None:
        if number_tag is not None and watch.tag is not None:
            try:
                tag_number = number_tag(watch.tag)
            except BaseException:  # a signal handler's
                hand_out(pool, token, nbytes, None).free()
                raise
        Py_INCREF(watch)
        block.watch = <PyObject*>watch
    enter(pool.table)
    pool.table.tag_number = tag_number
    count_live(pool.table, block, nbytes)
    pool.table.tag_number = 0
    leave(pool.table)
    memory.block = block
    return memory


def slice_of(HotPool pool not None, root, word nbytes):
    """Return a handle without a block, whose root is what it was cut from."""
    cdef Memory memory = pool.handle(NULL, nbytes)
    if root is not None:
        Py_INCREF(root)
        memory.root = <PyObject*>root
    return memory


allocate_with_options = HotPool.allocate
cdef bytes allocate_doc = (
    "allocate($self, nbytes, *, alignment=None, stream=None, tag=None)\n--\n\n"
    + Allocating.allocate.__doc__
).encode()
cdef PyMethodDef allocate_method
replace_method(HotPool, &allocate_method, b"allocate", <void*>allocate, allocate_doc)


cdef object allocate(
    HotPool pool, PyObject** arguments, Py_ssize_t count, PyObject* names
):
    """Serve an allocation without options from its bin, or from the index."""
    cdef word size
    cdef int overflow = 0
    if (
        count != 1
        or names is not NULL
        or active_watches
        or type(<object>arguments[0]) is not int
    ):
        return allocate_unusual(pool, arguments, count, names)
    size = PyLong_AsLongLongAndOverflow(<object>arguments[0], &overflow)
    if overflow or size <= 0 or size > pool.bins.largest:
        return allocate_unusual(pool, arguments, count, names)
    # The handle first: it is the one step that may fail or run a finalizer.
    cdef Memory memory = Memory.__new__(Memory)
    Py_INCREF(pool)
    memory.owner = <PyObject*>pool
    memory.size = size
    cdef Block* block = NULL
    enter(pool.table)
    block = pop(pool.table, round_up(size))
    if block is not NULL:
        count_live(pool.table, block, size)
    leave(pool.table)
    if block is NULL:
        block = pool.bins.miss(size, pool.lane)
        enter(pool.table)
        count_live(pool.table, block, size)
        leave(pool.table)
    memory.block = block
    return memory


cdef object allocate_unusual(
    HotPool pool, PyObject** arguments, Py_ssize_t count, PyObject* names
):
    """Hand the arguments of ``allocate`` on, whatever they are."""
    cdef Py_ssize_t i
    cdef HotPool lane
    if kept_count:
        raise_kept()
    if count == 1 and names is not NULL and <tuple><object>names == ("stream",):
        try:
            lane = pool.lanes_seen.get(<object>arguments[1])  # None for the pool itself
        except TypeError:  # of what cannot be hashed
            lane = None
        if lane is not None and lane is not pool:
            return allocate(lane, arguments, 1, NULL)
    given = [<object>arguments[i] for i in range(count)]
    options = {}
    if names is not NULL:
        for i, name in enumerate(<tuple><object>names):
            options[name] = <object>arguments[count + i]
    return allocate_with_options(pool, *given, **options)


cdef _state(Block* block):
    return BlockState(
        <object>block.arena,
        offset_of(block),
        block.bin.capacity,
        bool(block.offset_and_flags & LIVE),
        block.nbytes,
        None if block.watch is NULL else (<object>block.watch).tag,
        () if block.watch is NULL else (<object>block.watch).stack,
    )


cdef long long ends = 0


cdef class Uses:
    """As in ``madl.hotpath.uses``; no signal handler runs in the middle of it."""

    cdef public object lock
    cdef readonly Py_ssize_t users
    cdef readonly long long last_used

    def __init__(self):
        self.lock = threading.RLock()
        self.count(0)

    def __class_getitem__(cls, used):
        return cls

    def __enter__(self):
        with self.lock:
            used = self.restored()
            # After it, C only: what raises from here on comes in the with block.
            madl_enter(&guard)
            self.users += 1
            madl_leave(&guard)
        return used

    def __exit__(self, *error):
        # Without the lock: a handler could raise while it is waited for.
        self.count(-1)

    cdef void count(self, int by) noexcept:
        global ends
        madl_enter(&guard)
        self.users += by
        ends += 1
        self.last_used = ends
        madl_leave(&guard)
