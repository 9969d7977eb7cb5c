"""Pools of CUDA devices in C, for PyTorch to call with its own locks held.

One for each device, and for the life of the process: PyTorch may free at any time. The
C functions are found by name in this file: ``madl_device_malloc`` and so on.
"""

from libc.stdint cimport uint64_t, uintptr_t

from madl.errors import CorruptedPoolError

cdef extern from "device_calls.h":
    enum:
        MADL_MOST_DEVICES
    ctypedef struct DriverCalls:
        pass
    ctypedef struct DevicePoolStats:
        uint64_t live_nbytes, live_high_water, committed_nbytes, committed_high_water
        uint64_t allocation_count, free_count, refused_count, unknown_free_count
        int last_status
    ctypedef struct DevicePoolSetup:
        DriverCalls calls
        void* context
        void* event
        const void* properties
        const void* access
        unsigned long long base
        uint64_t reserved_nbytes, page_nbytes, limit_nbytes
    ctypedef struct DevicePool:
        DevicePoolStats stats
    DevicePool** device_pools
    bint open_device_pool(int device, const DevicePoolSetup* setup)
    DevicePool* enter_pool(int device) nogil
    void leave_pool(DevicePool* pool) nogil
    uint64_t trim_pool(DevicePool* pool) nogil
    const char* wrong_with(DevicePool* pool) nogil

MOST_DEVICES = MADL_MOST_DEVICES

CALLS = (
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuCtxSynchronize",
)
"""The driver's functions that a pool calls, in the order of their addresses."""


def open_pool(
    int device,
    calls,
    *,
    uintptr_t context,
    uintptr_t event,
    uintptr_t properties,
    uintptr_t access,
    unsigned long long base,
    uint64_t reserved_nbytes,
    uint64_t page_nbytes,
    uint64_t limit_nbytes,
):
    """Put a pool in place for a device that has none.

    Args:
        device: Its number.
        calls: Addresses of the functions in ``CALLS``.
        context: The device's primary context.
        event: An event of it, for this pool alone.
        properties: The driver's description of a page; it must stay.
        access: Of who may use it; it must stay.
        base: Where its addresses start.
        reserved_nbytes: How many there are.
        page_nbytes: What is committed at once is a multiple of it.
        limit_nbytes: What may be committed; at most what is reserved.

    Raises:
        ValueError: The device has a pool already.
        MemoryError: There is no memory for a pool.
    """
    cdef DevicePoolSetup setup
    cdef void** addresses = <void**>&setup.calls
    cdef uintptr_t address
    if not 0 <= device < MADL_MOST_DEVICES or device_pools[device] is not NULL:
        raise ValueError(f"device {device} has a pool for PyTorch already")
    if len(calls) * sizeof(void*) != sizeof(DriverCalls):
        raise ValueError(f"calls must be {len(CALLS)} addresses, got {len(calls)}")
    for i, address in enumerate(calls):
        addresses[i] = <void*>address
    setup.context = <void*>context
    setup.event = <void*>event
    setup.properties = <const void*>properties
    setup.access = <const void*>access
    setup.base = base
    setup.reserved_nbytes = reserved_nbytes
    setup.page_nbytes = page_nbytes
    setup.limit_nbytes = min(limit_nbytes, reserved_nbytes)
    if not open_device_pool(device, &setup):
        raise MemoryError("no memory for a pool for PyTorch")


cdef DevicePool* _enter(int device) except NULL:
    """Return a locked pool; without the interpreter's lock while it waits."""
    cdef DevicePool* pool
    with nogil:
        pool = enter_pool(device)
    if pool is NULL:
        raise ValueError(f"device {device} has no pool for PyTorch in this process")
    return pool


def stats_of(int device):
    """Return a pool's counters by name."""
    cdef DevicePool* pool = _enter(device)
    cdef DevicePoolStats stats = pool.stats
    leave_pool(pool)
    return stats


def trim(int device):
    """Give free memory at the end back to the device; return how much. Waits."""
    cdef DevicePool* pool = _enter(device)
    cdef uint64_t given
    with nogil:
        given = trim_pool(pool)
        leave_pool(pool)
    return given


def check(int device):
    """Verify every invariant of a pool.

    Raises:
        CorruptedPoolError: With the one that is broken.
    """
    cdef DevicePool* pool = _enter(device)
    cdef const char* wrong
    with nogil:
        wrong = wrong_with(pool)
        leave_pool(pool)
    if wrong is not NULL:
        raise CorruptedPoolError(f"a device pool's {wrong.decode()}", "broken", "kept")
