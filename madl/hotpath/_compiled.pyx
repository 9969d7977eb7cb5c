"""``Memory`` and the bins in front of the arenas' indexes, compiled.

The twin of ``interpreted_memory`` and ``interpreted_pool``, with the same offsets to
the byte. While C code runs here it keeps the interpreter's lock and calls no Python,
so every function is one step to other threads, to finalizers and to signal handlers:
only what may call the device, or wait for somebody who does, takes the pool's lock.
A *guarded* pool has a short lock around the rest too: where there is no interpreter
lock, and where C code allocates without holding it.
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
    Bins,
    Block,
    Shared,
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
from madl.hotpath.fastcall cimport PyMethodDef, replace_method

from madl.hotpath.reentrancy import is_inside, locks_held
from madl.hotpath.shared import (
    LARGEST_REQUEST_NBYTES,
    BlockState,
    cold,
    known_dtypes,
)

cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject* value)
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    SLAB_LENGTH = 256

cdef word LARGEST_REQUEST = LARGEST_REQUEST_NBYTES

cdef int active_watches = 0

# What all pools share: the count of watches, the pools, and what they write to.
cdef madl_guard guard = 0
cdef Shared* pools = NULL
cdef madl_journal* journals = NULL
cdef object number_tag = None


def change_watch_count(int by):
    """Tell every pool that a tag or a recording has become active, or has ended."""
    global active_watches
    madl_enter(&guard)
    active_watches += by
    madl_leave(&guard)


cdef void guard_journals() noexcept nogil:
    """Let writers wait for each other: one of them has no interpreter lock."""
    cdef madl_journal* journal = journals
    while journal is not NULL:
        journal.is_guarded = True
        journal = journal.older


# A thread that is in a guard while another one forks is gone in the child: it would
# never leave. No Python runs between these calls, so holding all guards is safe.
cdef void enter_all() noexcept nogil:
    cdef Shared* shared
    madl_enter(&guard)
    shared = pools
    while shared is not NULL:
        madl_enter(&shared.guard)
        shared = shared.next


cdef void leave_all() noexcept nogil:
    cdef Shared* shared = pools
    while shared is not NULL:
        madl_leave(&shared.guard)
        shared = shared.next
    madl_leave(&guard)


cdef void leave_all_in_child() noexcept nogil:
    """Also write no more: the journals are the parent's."""
    global journals
    cdef Shared* shared = pools
    journals = NULL
    while shared is not NULL:
        shared.journal = NULL
        shared = shared.next
    leave_all()


cdef void write_to(madl_journal* newest, number) noexcept:
    """Let all pools write to a chain of journals from now on.

    ``number(tag)`` returns what these call a tag; ``None`` where there is no journal.
    """
    global journals, number_tag
    cdef Shared* shared
    number_tag = number
    enter_all()
    journals = newest
    shared = pools
    while shared is not NULL:
        shared.journal = newest
        if shared.is_guarded:
            guard_journals()
        shared = shared.next
    leave_all()


cdef void enlist(Shared* shared) noexcept nogil:
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


cdef void delist(Shared* shared) noexcept nogil:
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

    def __init__(self, FirstFit blocks, address, *, bint is_apart):
        self.blocks = blocks
        self.start = address
        self.base = 0 if address is None else address
        self.is_apart = is_apart

    # Written out, as those of HotPool that threads read at once: where there is no
    # interpreter lock, the properties that Cython makes lock the object, and a fork
    # may leave that lock to a thread that is not there in the child.
    @property
    def address(self):
        return self.start


cdef int wipe(Bins* bins, Block* block) noexcept nogil:
    """Set a freed block of host memory to zero and put it back, as ``put_back`` does.

    Not in the guard: it may take a while, and nobody else has the block.
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
            enter(&(<HotPool>self.owner).bins)  # two threads may free the same handle
            block = self.block
            self.block = NULL
            if block is not NULL:
                root = self.root
                self.root = NULL
            leave(&(<HotPool>self.owner).bins)
        if block is NULL:
            raise cold["refuse_free"](self)
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

    def _place(self):
        """Return arena, offset and capacity; ``None`` when it has no block."""
        cdef Block* block = self.block
        if block is NULL:
            return None
        arena = None if block.arena is NULL else <object>block.arena
        return arena, offset_of(block), block.bin.capacity

    def _watch(self):
        if self.block is NULL or self.block.watch is NULL:
            return None
        return <object>self.block.watch

    def _keep_by(self, Root root):
        """Let a root hold the block through a keeper of its own; the first wins.

        Returns:
            The one that holds it; ``None`` where the handle has no block any more, or
            another one than the root shows.
        """
        cdef HotPool owner = <HotPool>self.owner
        cdef Memory keeper = owner.handle(NULL, self.size)
        cdef PyObject* kept = NULL
        root.keeper = keeper
        enter(&owner.bins)
        if self.block is not NULL and is_shown_by(self, root):
            if self.root is NULL:
                keeper.block = self.block
                Py_INCREF(root)
                self.root = <PyObject*>root
            kept = self.root
            Py_INCREF(<object>kept)
        leave(&owner.bins)
        return owned(kept)

    def _detach(self):
        """Make the handle the block's only keeper again, unless somebody has a view.

        Returns:
            Whether it is.
        """
        cdef HotPool owner = <HotPool>self.owner
        cdef PyObject* root = NULL
        cdef bint is_alone
        enter(&owner.bins)
        is_alone = take_root(self, &root)
        leave(&owner.bins)
        Py_XDECREF(root)
        return is_alone

    def _unbin(self):
        """Let the block go to no bin when it is freed, but wait to be taken back."""
        cdef HotPool owner = <HotPool>self.owner
        enter(&owner.bins)
        if self.block is not NULL:
            self.block.offset_and_flags |= UNBINNED
        leave(&owner.bins)

    def _exchange(self, Memory other, arena, word offset):
        """Swap blocks and sizes with another handle of the same pool.

        Returns:
            Whether it was done: not while somebody has a view, nor where the block lies
            elsewhere by now, or was freed.
        """
        cdef HotPool owner = <HotPool>self.owner
        cdef PyObject* place = NULL if arena is None else <PyObject*>arena
        cdef PyObject* root = NULL
        cdef PyObject* other_root = NULL
        cdef bint is_there
        enter(&owner.bins)
        is_there = (
            self.block is not NULL
            and self.block.arena is place
            and offset_of(self.block) == offset
            and take_root(other, &other_root)
            and take_root(self, &root)
        )
        if is_there:
            self.block, other.block = other.block, self.block
            # A lane may have been merged by now.
            self.owner, other.owner = other.owner, self.owner
            self.size, other.size = other.size, self.size
        leave(&owner.bins)
        Py_XDECREF(root)
        Py_XDECREF(other_root)
        return is_there

    @property
    def _root(self):
        return owned(new_reference_to_root(self))

    @property
    def _pool(self):
        if self.owner is NULL:
            raise TypeError("a Memory is made by Pool.allocate or madl.allocate")
        return <object>self.owner

    @property
    def _nbytes(self):
        return self.size

    @property
    def pool(self):
        """The pool that the memory came from."""
        return self._pool._head

    @property
    def nbytes(self):
        """Bytes asked for."""
        return self.size

    @property
    def capacity(self):
        """Bytes given, ``nbytes`` rounded up to the pool's granularity."""
        return cold["capacity"](self)

    @property
    def address(self):
        """Where the memory starts; 0 for zero bytes. Not covered by ``free``.

        Raises:
            MissingCapabilityError: The device has no addresses.
        """
        return cold["address"](self)

    @property
    def native(self):
        """What the device's own API calls this memory, an address or a ``cl_mem``."""
        return cold["native"](self)

    @property
    def device(self):
        """The device's name, as in ``"cpu"``."""
        return cold["device"](self)

    @property
    def tag(self):
        """The tag that the memory was allocated under."""
        return cold["tag"](self)

    @property
    def stream(self):
        """The stream that owns the memory; ``None`` on devices without streams."""
        return cold["stream"](self)

    @property
    def is_freed(self):
        """Whether ``free()`` has been called, on it or on what it was cut from."""
        return cold["is_freed"](self)

    @property
    def __array_interface__(self):
        return cold["array_interface"](self)

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
        return cold["as_array"](self, dtype, shape) if array is None else array

    def memoryview(self):
        """Return a writable view of the bytes; it keeps the block live."""
        return cold["memoryview"](self)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        # The view's own root is the exporter, so nothing is left to release here.
        PyObject_GetBuffer(cold["memoryview"](self), buffer, flags)

    @property
    def __cuda_array_interface__(self):
        return cold["cuda_array_interface"](self)

    def __dlpack_device__(self):
        return cold["dlpack_device"](self)

    def __dlpack__(self, *, stream=None, **options):
        return cold["dlpack"](self, stream, options)

    def tobytes(self):
        """Return a copy of the content."""
        return cold["tobytes"](self)

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        return cold["cut"](self, part)

    def copy_from(self, source, *, stream=None):
        """Copy the bytes of ``source`` to the start of this memory.

        Args:
            source: A ``Memory``, or anything with a C-contiguous buffer.
            stream: Where the copy is queued. Without one it is complete on return.

        Raises:
            ValueError: ``source`` is larger. Nothing is copied.
            NotContiguousError: ``source`` has gaps.
        """
        cold["copy_from"](self, source, stream)

    def copy_to(self, destination, *, stream=None):
        """Copy all bytes to the start of ``destination``.

        Args:
            destination: A ``Memory``, or anything with a writable, C-contiguous buffer.
            stream: Where the copy is queued. Without one it is complete on return.

        Raises:
            ValueError: ``destination`` is smaller. Nothing is copied.
            NotContiguousError: ``destination`` has gaps.
        """
        cold["copy_to"](self, destination, stream)

    def fill(self, value=0):
        """Set every byte to ``value``, 0 to 255."""
        cold["fill"](self, value)

    def resize(self, nbytes):
        """Change ``nbytes``; the content up to the smaller size stays.

        The memory may move. Nothing changes on failure.

        Raises:
            ValueError: It is a slice, or views of it live.
            OutOfMemoryError: As for ``allocate``.
        """
        cold["resize"](self, nbytes)

    def record_stream(self, stream):
        """Say that queued work of another stream uses the memory.

        Raises:
            MissingCapabilityError: The device is not stream-ordered.
        """
        cold["record_stream"](self, stream)

    def __reduce_ex__(self, protocol):
        raise cold["refuse_pickle"](self)

    def __repr__(self):
        return cold["repr"](self)


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
    """Take a root that nobody else refers to, and let it keep nothing."""
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
    enter(&(<HotPool>memory.owner).bins)
    root = memory.root
    Py_XINCREF(root)
    leave(&(<HotPool>memory.owner).bins)
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
        return cold["ndarray"](shape, element, root)
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


cdef void mark_listed(Block* block) noexcept nogil:
    while block is not NULL:
        block.offset_and_flags |= LISTED
        block = block.next


cdef class HotPool:
    """Bins in front of the arenas' indexes, and what every allocation counts.

    ``Pool`` adds everything that is not hot: growing, trimming, limits, statistics.
    """

    def __cinit__(self, *arguments, **options):
        self.small_arenas = []
        self.large_arenas = []
        self._bands = (self.small_arenas, self.large_arenas)
        self._small_nbytes = LARGEST_REQUEST
        self.most_nbytes = LARGEST_REQUEST
        self.lock = threading.Lock()
        self._users = {}
        self.lanes_seen = {}
        self.bins.shared = &self.own
        self.own.is_guarded = not MADL_HAS_INTERPRETER_LOCK
        enlist(&self.own)
        self.bins.slot_count = 256
        self.bins.slots = <Slot*>calloc(self.bins.slot_count, sizeof(Slot))
        if self.bins.slots is NULL:
            raise MemoryError("no memory for the bins of a pool")

    def __dealloc__(self):
        cdef Py_ssize_t i
        cdef Slab* slab = self.slabs
        cdef Slab* following
        if self.bins.shared is &self.own:
            delist(&self.own)
        if self.bins.slots is not NULL:
            for i in range(self.bins.slot_count):
                free(self.bins.slots[i].bin)
            free(self.bins.slots)
        while slab is not NULL:
            following = slab.next
            free(slab)
            slab = following

    def _share(self, HotPool other):
        delist(&self.own)
        self.joined = other  # keeps what is pointed to
        self.bins.shared = other.bins.shared
        self.lock = other.lock

    @property
    def _lock(self):
        return self.lock

    @_lock.setter
    def _lock(self, value):
        self.lock = value

    @property
    def _most_nbytes(self):
        return self.most_nbytes

    @_most_nbytes.setter
    def _most_nbytes(self, word value):
        self.most_nbytes = value

    @property
    def _lanes_seen(self):
        return self.lanes_seen

    @_lanes_seen.setter
    def _lanes_seen(self, dict value not None):
        self.lanes_seen = value

    @cython.final
    cdef void become_guarded(self) noexcept:
        self.bins.shared.is_guarded = True
        guard_journals()

    @property
    def _stream_number(self):
        return self.bins.stream_number

    @_stream_number.setter
    def _stream_number(self, word number):
        self.bins.stream_number = number

    @property
    def _lock_holder(self):
        return self.bins.shared.lock_holder

    @_lock_holder.setter
    def _lock_holder(self, unsigned long ident):
        self.bins.shared.lock_holder = ident

    @property
    def _binned_nbytes(self):
        return self.bins.shared.binned_nbytes

    @property
    def _live_nbytes(self):
        return self.bins.shared.live_nbytes

    @property
    def _live_high_water(self):
        return self.bins.shared.live_high_water

    @property
    def _allocation_count(self):
        return self.bins.shared.allocation_count

    @property
    def _placed_count(self):
        return self.bins.shared.placed_count

    @property
    def _was_interrupted(self):
        return self.bins.shared.was_interrupted

    @_was_interrupted.setter
    def _was_interrupted(self, bint value):
        self.bins.shared.was_interrupted = value

    def allocate(self, nbytes, *, alignment=None, stream=None, tag=None):
        """Return memory of at least ``nbytes`` bytes; its content is undefined.

        Args:
            nbytes: Bytes, or a text such as ``"64 MiB"``. Zero is allowed.
            alignment: Bytes, a power of two. The device's own at least (512).
            stream: The stream whose work uses it, on stream-ordered devices.
            tag: A label that statistics, reports and traces show.

        Raises:
            OutOfMemoryError: It does not fit the limit or the device. The report in
                the error says why; accounting is unchanged and the pool usable.
            TypeError, ValueError, OverflowError: ``nbytes`` is no byte count.
            MissingCapabilityError: The device cannot honour an option.

        Complexity: O(1) when a block of the same rounded size was freed lately, else
        O(log n) in the pool's free blocks. Thread-safe.
        """
        return self._allocate_with(nbytes, alignment, stream, tag)

    @cython.final
    cdef int take_back(self, Block* block) except -1:
        """Do what a free does: tell who watches, and put the block into its bin."""
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
        """Do so for a watched block that nobody freed.

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
        enter(&self.bins)  # _block_states looks at it
        watch = block.watch
        block.watch = NULL
        leave(&self.bins)
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
        enter(&self.bins)
        left = put_back(&self.bins, block)
        leave(&self.bins)
        if left == WIPE:
            left = wipe(&self.bins, block)
        if left == TELL:
            self._freed_after_close()
        return 0

    @cython.final
    cdef Memory handle(self, Block* block, word size):
        cdef Memory memory = Memory.__new__(Memory)
        Py_INCREF(self)
        memory.owner = <PyObject*>self
        memory.size = size
        memory.block = block
        return memory

    def _hand_out(self, uintptr_t token, word nbytes, watch):
        """Count a block as live and make its handle."""
        cdef Block* block = <Block*>token
        cdef Memory memory = self.handle(NULL, nbytes)
        cdef word tag_number = 0
        if watch is not None:
            if number_tag is not None and watch.tag is not None:
                try:
                    tag_number = number_tag(watch.tag)
                except BaseException:  # a signal handler's
                    self._hand_out(token, nbytes, None).free()
                    raise
            Py_INCREF(watch)
            block.watch = <PyObject*>watch
        enter(&self.bins)
        self.bins.tag_number = tag_number
        count_live(&self.bins, block, nbytes)
        self.bins.tag_number = 0
        leave(&self.bins)
        memory.block = block
        return memory

    def _slice_of(self, root, word nbytes):
        """Return a handle without a block, whose root is what it was cut from."""
        cdef Memory memory = self.handle(NULL, nbytes)
        if root is not None:
            Py_INCREF(root)
            memory.root = <PyObject*>root
        return memory

    def _miss(self, word nbytes):
        """Return a block of a size from its bin or elsewhere, as a token."""
        cdef Block* block
        enter(&self.bins)
        try:
            if nbytes == 0:
                block = self.new_block(None, 0, 0)
            else:
                block = pop(&self.bins, round_up(nbytes))
                if block is not NULL:
                    take(&self.bins, block, PyThread_get_thread_ident())
        finally:
            leave(&self.bins)
        if block is NULL:
            block = self.miss(nbytes)
        return <uintptr_t>block

    @cython.final
    cdef Block* miss(self, word nbytes) except NULL:
        """Return a block for a size whose bin is empty; it counts as binned still."""
        cdef Block* block = NULL
        cdef word capacity = round_up(nbytes)
        cdef word placed_before = self.bins.shared.placed_count
        cdef unsigned long ident
        if (
            MADL_HAS_INTERPRETER_LOCK
            and self.bins.shared.lock_holder == 0
            and self.bins.returned is NULL
        ):
            if not self.bins.shared.was_interrupted:
                block = self.place(capacity)
        elif is_inside():
            try:
                block = <Block*><uintptr_t>self._place_apart(nbytes)
            except BaseException:
                self.return_since(placed_before)
                raise
        else:
            ident = PyThread_get_thread_ident()
            with self.lock:
                self.bins.shared.lock_holder = ident
                locks_held[ident] = 1
                try:
                    if not self.bins.shared.was_interrupted:
                        self._take_back_returned()
                        block = self.place(capacity)
                except BaseException:
                    self.bins.shared.was_interrupted = True
                    raise
                finally:
                    locks_held[ident] = 0
                    self.bins.shared.lock_holder = 0
        if block is NULL:
            try:
                block = <Block*><uintptr_t>self._place_slowly(nbytes, capacity, 0)
            except BaseException:
                self.return_since(placed_before)
                raise
        if self.zeroes_new:
            try:
                self._zero_new(<uintptr_t>block)
            except BaseException:
                self.return_since(placed_before)
                raise
        return block

    @cython.final
    cdef Block* place(self, word capacity) except? NULL:
        """Take a block from where no page is missing, or return NULL."""
        cdef HotArena arena
        cdef word offset
        cdef list band
        band = self.large_arenas if capacity > self._small_nbytes else self.small_arenas
        enter(&self.bins)
        try:
            self._miss_count += 1
            self.flush(&self.bins.filled_large)
            if self.bins.shared.binned_nbytes > self._leash_nbytes:
                self.flush(&self.bins.filled_small)
            for arena in band:
                offset = arena.blocks.allocate(capacity)
                if offset >= 0:
                    return self.new_block(arena, offset, capacity)
        finally:
            leave(&self.bins)
        return NULL

    def _block_at(self, HotArena arena, word offset, word capacity, *, bint is_binned):
        """Return the block for a place that was taken; its free goes to its bin."""
        cdef Block* block
        enter(&self.bins)
        try:
            block = self.new_block(arena, offset, capacity)
            if not is_binned:
                block.offset_and_flags |= UNBINNED
        finally:
            leave(&self.bins)
        return <uintptr_t>block

    @cython.final
    cdef Block* new_block(
        self, HotArena arena, word offset, word capacity
    ) except NULL:
        cdef Bin* bin = self.bin_of(capacity)
        cdef Block* block
        if self.bins.unused is NULL:
            self.add_slab()
        block = self.bins.unused
        self.bins.unused = block.next
        block.offset_and_flags = offset | self.bins.first_flags
        block.nbytes = 0
        block.bin = bin
        block.arena = NULL if arena is None else <PyObject*>arena
        block.watch = NULL
        bin.placed += 1
        self.bins.shared.binned_nbytes += capacity
        take(&self.bins, block, PyThread_get_thread_ident())
        return block

    @cython.final
    cdef int add_slab(self) except -1:
        cdef Py_ssize_t i
        cdef Slab* slab = <Slab*>malloc(sizeof(Slab))
        if slab is NULL:
            raise MemoryError("no memory for the records of a pool's blocks")
        slab.next = self.slabs
        self.slabs = slab
        for i in range(SLAB_LENGTH - 1, -1, -1):
            slab.blocks[i].bin = NULL
            slab.blocks[i].next = self.bins.unused
            self.bins.unused = &slab.blocks[i]
        return 0

    @cython.final
    cdef Bin* bin_of(self, word capacity) except NULL:
        """Return the bin of a capacity; the first call makes it."""
        cdef Slot* slot = slot_for(self.bins.slots, self.bins.slot_count, capacity)
        if slot.bin is NULL:
            if 2 * self.bins.bin_count >= self.bins.slot_count:
                self.rebuild_slots()
                slot = slot_for(self.bins.slots, self.bins.slot_count, capacity)
            slot.bin = <Bin*>calloc(1, sizeof(Bin))
            if slot.bin is NULL:
                raise MemoryError("no memory for the bins of a pool")
            slot.capacity = slot.bin.capacity = capacity
            slot.bin.is_large = capacity > self._small_nbytes
            self.bins.bin_count += 1
        return slot.bin

    @cython.final
    cdef int rebuild_slots(self) except -1:
        """Drop the bins that no block uses; double the slots if that is not enough."""
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        cdef Py_ssize_t count = self.bins.slot_count
        cdef Slot* old = self.bins.slots
        cdef Slot* new
        for i in range(self.bins.slot_count):
            kept += old[i].bin is not NULL and (
                old[i].bin.placed != 0 or old[i].bin.is_listed
            )
        while 4 * kept >= count:
            count *= 2
        new = <Slot*>calloc(count, sizeof(Slot))
        if new is NULL:
            raise MemoryError("no memory for the bins of a pool")
        for i in range(self.bins.slot_count):
            if old[i].bin is NULL:
                continue
            if old[i].bin.placed or old[i].bin.is_listed:
                slot_for(new, count, old[i].capacity)[0] = old[i]
            else:
                free(old[i].bin)
        free(old)
        self.bins.slots = new
        self.bins.slot_count = count
        self.bins.bin_count = kept
        return 0

    @cython.final
    cdef int unplace(self, Block* block) except -1:
        """Give a free block back to the index, where it coalesces."""
        (<HotArena>block.arena).blocks.free(offset_of(block), block.bin.capacity)
        discard(&self.bins, block)
        return 0

    @cython.final
    cdef int flush(self, Bin** filled) except -1:
        """Give the blocks of all listed bins back to the index."""
        cdef Bin* bin
        cdef Block* block
        while filled[0] is not NULL:
            bin = filled[0]
            filled[0] = bin.next_filled
            bin.is_listed = False
            while bin.top is not NULL:
                block = bin.top
                bin.top = block.next
                self.unplace(block)
        return 0

    def _flush(self):
        """Give all binned blocks back to the index, where they coalesce."""
        enter(&self.bins)
        try:
            self.flush(&self.bins.filled_large)
            self.flush(&self.bins.filled_small)
        finally:
            leave(&self.bins)

    def _take_back_returned(self):
        cdef HotArena arena
        cdef Block* block
        cdef bint is_plain
        while True:
            arena = None  # what was released ends here, not in the guard
            enter(&self.bins)
            try:
                block = self.bins.returned
                if block is NULL:
                    return
                self.bins.returned = block.next
                arena = <HotArena>block.arena
                is_plain = not (self._users or self.wipes_later)
                if is_plain:
                    self.unplace(block)
            finally:
                leave(&self.bins)
            if not is_plain:
                self._unplace_when_unused(<uintptr_t>block, arena, offset_of(block))
            elif arena.is_apart:
                self._release_apart(arena)

    def _unplace(self, uintptr_t token):
        """Give a block back to the index that belongs to no bin."""
        cdef Block* block = <Block*>token
        cdef HotArena arena = <HotArena>block.arena
        enter(&self.bins)
        try:
            self.unplace(block)
        finally:
            leave(&self.bins)
        if arena.is_apart:
            self._release_apart(arena)

    @cython.final
    cdef void return_since(self, word placed_before) noexcept:
        cdef Slab* slab
        cdef Block* block
        cdef Py_ssize_t i
        cdef Block* thread = <Block*>PyThread_get_thread_ident()
        if self.bins.shared.placed_count == placed_before:
            return
        enter(&self.bins)
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
        leave(&self.bins)

    @cython.final
    cdef void take_back_later(self, Block* block) noexcept:
        block.offset_and_flags &= ~<word>TAKEN
        if block.arena is NULL:
            discard(&self.bins, block)
        else:
            block.next = self.bins.returned
            self.bins.returned = block

    def _return_since(self, word placed_before):
        """Lose no block that this thread took since then and has not handed out.

        For an allocation that ends with an error.
        """
        self.return_since(placed_before)

    def _gather_lost(self):
        """Let every block be taken back that is free, and neither listed nor in hand.

        For a change that was interrupted. The lock is held. Done at once: what a thread
        has in hand, it has marked.
        """
        cdef Py_ssize_t i
        cdef Slab* slab
        cdef Block* block
        enter(&self.bins)
        for i in range(self.bins.slot_count):
            if self.bins.slots[i].bin is not NULL:
                mark_listed(self.bins.slots[i].bin.top)
        mark_listed(self.bins.returned)
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
        leave(&self.bins)
        return True

    def _recount(self):
        """Count nothing: what is counted changes together with the blocks."""
        return True

    @property
    def _bin_count(self):
        """Bins there are, empty ones too."""
        return self.bins.bin_count

    def _has_returned(self):
        """Whether blocks wait that belong to no bin."""
        return self.bins.returned is not NULL

    def _zero(self, *, bint new, bint freed, bint at_once):
        """Choose what is zeroed from now on; no block is placed yet.

        ``_zero_new`` hears of each block before it is handed out; what is freed is
        wiped by the host at once, or left to ``_unplace_when_unused``.
        """
        self.zeroes_new = new
        self.wipes_later = freed and not at_once
        self.bins.first_flags = UNBINNED | (WIPED if freed and at_once else 0)

    def _keep_contents(self):
        """Let what is live keep its content when it is freed."""
        cdef Slab* slab = self.slabs
        cdef Py_ssize_t i
        enter(&self.bins)
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                slab.blocks[i].offset_and_flags &= ~<word>WIPED
            slab = slab.next
        leave(&self.bins)

    def _place_of(self, uintptr_t token):
        """Return arena, offset and capacity of a block; ``None`` without bytes."""
        cdef Block* block = <Block*>token
        if block.arena is NULL:
            return None
        return <object>block.arena, offset_of(block), block.bin.capacity

    def _unbin_all(self):
        """Let what is live go to no bin when it is freed, but wait to be taken back."""
        cdef Slab* slab = self.slabs
        cdef Py_ssize_t i
        enter(&self.bins)
        while slab is not NULL:
            for i in range(SLAB_LENGTH):
                if slab.blocks[i].bin is not NULL:
                    slab.blocks[i].offset_and_flags |= UNBINNED
            slab = slab.next
        leave(&self.bins)

    def _return_every_free(self):
        """Let no free go to a bin any more; ``_freed_after_close`` hears of each."""
        self.bins.returns_every_free = True

    def _block_states(self):
        """Return every placed block, live or free in a bin."""
        cdef Slab* slab
        cdef Block[SLAB_LENGTH] seen
        cdef Py_ssize_t i, count
        states = []
        enter(&self.bins)
        slab = self.slabs
        leave(&self.bins)
        while slab is not NULL:
            count = 0
            enter(&self.bins)
            for i in range(SLAB_LENGTH):
                if slab.blocks[i].bin is NULL or slab.blocks[i].arena is NULL:
                    continue
                seen[count] = slab.blocks[i]
                Py_XINCREF(seen[count].watch)
                count += 1
            leave(&self.bins)
            try:
                for i in range(count):
                    states.append(_state(&seen[i]))
            finally:
                for i in range(count):
                    Py_XDECREF(seen[i].watch)
            slab = slab.next
        return states


class JoinedPool:
    """Mixed into a ``HotPool`` whose ``_join`` is called before it is used."""

    def _join(self, other):
        """Share the lock and all that is counted with another pool."""
        self._share(other)


allocate_with_options = HotPool.allocate
cdef bytes allocate_doc = (
    "allocate($self, nbytes, *, alignment=None, stream=None, tag=None)\n--\n\n"
    + allocate_with_options.__doc__
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
    if overflow or size <= 0 or size > pool.most_nbytes:
        return allocate_unusual(pool, arguments, count, names)
    # The handle first: it is the one step that may fail or run a finalizer.
    cdef Memory memory = Memory.__new__(Memory)
    Py_INCREF(pool)
    memory.owner = <PyObject*>pool
    memory.size = size
    cdef Block* block = NULL
    enter(&pool.bins)
    block = pop(&pool.bins, round_up(size))
    if block is not NULL:
        count_live(&pool.bins, block, size)
    leave(&pool.bins)
    if block is NULL:
        block = pool.miss(size)
        enter(&pool.bins)
        count_live(&pool.bins, block, size)
        leave(&pool.bins)
    memory.block = block
    return memory


cdef object allocate_unusual(
    HotPool pool, PyObject** arguments, Py_ssize_t count, PyObject* names
):
    """Hand the arguments of ``allocate`` on, whatever they are."""
    cdef Py_ssize_t i
    cdef HotPool lane
    if count == 1 and names is not NULL and <tuple><object>names == ("stream",):
        try:
            lane = pool.lanes_seen.get(<object>arguments[1])
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
