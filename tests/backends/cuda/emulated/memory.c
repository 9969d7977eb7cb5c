/* Memory in one piece: of the device, pinned, managed, and stream-ordered. */
#define _GNU_SOURCE
#include "emulated.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static Range *ranges;

void *new_memory(size_t nbytes)
{
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static size_t whole(size_t nbytes) { return (nbytes + 4095) & ~(size_t)4095; }

Range *find_range(Address at)
{
    for (Range *range = ranges; range; range = range->next)
        if (at >= range->at && at - range->at < range->nbytes)
            return range;
    return NULL;
}

/* Where the emulation keeps an address; less of it when that ends sooner. */
char *reach(Address at, size_t *nbytes)
{
    int is_reserved = 0;
    char *page = reach_page(at, nbytes, &is_reserved);
    if (page || is_reserved)
        return page;
    Range *range = find_range(at);
    if (!range)
        return (char *)at; /* the program's own memory */
    size_t left = range->nbytes - (at - range->at);
    if (*nbytes > left)
        *nbytes = left;
    return range->is_ready ? range->shadow + (at - range->at) : NULL;
}

static Status take_host(size_t nbytes)
{
    if (counts[HOST_NBYTES] + (long long)nbytes > settings[HOST])
        return OUT_OF_MEMORY;
    counts[HOST_NBYTES] += (long long)nbytes;
    return OK;
}

static Status allocate(Address *at, size_t nbytes, int device, int kind)
{
    if (!nbytes)
        return misuse(INVALID_VALUE, "an allocation of nothing");
    Status status = kind == HOST_RANGE ? take_host(nbytes)
                                       : take_device_memory(device, nbytes);
    if (status != OK)
        return status;
    Range *range = calloc(1, sizeof *range);
    range->shadow = new_memory(whole(nbytes));
    range->at = (Address)range->shadow;
    if (kind == DEVICE_RANGE) /* an address of its own, which the host cannot read */
        range->at = (Address)mmap(NULL, whole(nbytes), PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    range->nbytes = nbytes;
    range->kind = kind;
    range->device = device;
    range->is_ready = 1;
    range->next = ranges;
    ranges = range;
    counts[kind == HOST_RANGE ? HOST_BLOCKS : ALLOCATIONS]++;
    *at = range->at;
    return OK;
}

Status free_range(Address at, int is_host)
{
    for (Range **link = &ranges; *link; link = &(*link)->next) {
        Range *range = *link;
        if (range->at != at || (range->kind == HOST_RANGE) != is_host)
            continue;
        *link = range->next;
        munmap(range->shadow, whole(range->nbytes));
        if (range->kind == DEVICE_RANGE)
            munmap((void *)range->at, whole(range->nbytes));
        if (is_host)
            counts[HOST_NBYTES] -= (long long)range->nbytes;
        else
            give_device_memory(range->device, range->nbytes);
        counts[is_host ? HOST_BLOCKS : ALLOCATIONS]--;
        free(range);
        return OK;
    }
    return misuse(INVALID_VALUE, "a free of %#llx, which is not allocated", at);
}

CALL(cuMemGetInfo_v2, (size_t *unused, size_t *total), (unused, total))
{
    NEED(context);
    *total = (size_t)settings[MEMORY];
    *unused = *total - (size_t)context->taken_nbytes;
    return OK;
}

MAKE(cuMemAlloc_v2, (Address *at, size_t nbytes), (at, nbytes))
{
    NEED(context);
    UNSAFE_IN_CAPTURE("cuMemAlloc");
    return allocate(at, nbytes, context->device, DEVICE_RANGE);
}

CALL(cuMemFree_v2, (Address at), (at))
{
    NEED(context);
    UNSAFE_IN_CAPTURE("cuMemFree");
    if (!at)
        return OK;
    /* No wait for queued work: a driver does not promise one. */
    return context->broken ? context->broken : free_range(at, 0);
}

MAKE(cuMemAllocManaged, (Address *at, size_t nbytes, unsigned flags),
     (at, nbytes, flags))
{
    NEED(context);
    UNSAFE_IN_CAPTURE("cuMemAllocManaged");
    if (flags != 1 && flags != 2)
        return misuse(INVALID_VALUE, "cuMemAllocManaged flags %u", flags);
    return allocate(at, nbytes, context->device, MANAGED_RANGE);
}

MAKE(cuMemHostAlloc, (void **at, size_t nbytes, unsigned flags), (at, nbytes, flags))
{
    NEED(context);
    UNSAFE_IN_CAPTURE("cuMemHostAlloc");
    if (flags & ~7u)
        return misuse(INVALID_VALUE, "cuMemHostAlloc flags %u", flags);
    return allocate((Address *)at, nbytes, context->device, HOST_RANGE);
}

MAKE(cuMemAllocHost_v2, (void **at, size_t nbytes), (at, nbytes))
{
    NEED(context);
    return allocate((Address *)at, nbytes, context->device, HOST_RANGE);
}

CALL(cuMemFreeHost, (void *at), (at))
{
    NEED(context);
    UNSAFE_IN_CAPTURE("cuMemFreeHost");
    return context->broken ? context->broken : free_range((Address)at, 1);
}

static int pools[MOST_DEVICES] = {0, 1, 2, 3, 4, 5, 6, 7};

static Status allocate_async(
    Address *at, size_t nbytes, int device, Context *context, void *stream)
{
    if (!settings[POOLS])
        return NOT_SUPPORTED;
    Status status = allocate(at, nbytes, device, DEVICE_RANGE);
    if (status == OK) {
        status = queue_ready(context, stream, find_range(*at));
        if (status != OK)
            free_range(*at, 0);
    }
    return status;
}

MAKE(cuMemAllocAsync, (Address *at, size_t nbytes, void *stream), (at, nbytes, stream))
{
    NEED(context);
    return allocate_async(at, nbytes, context->device, context, stream);
}

MAKE(cuMemAllocFromPoolAsync, (Address *at, size_t nbytes, int *pool, void *stream),
     (at, nbytes, pool, stream))
{
    NEED(context);
    if (pool < pools || pool >= pools + MOST_DEVICES)
        return misuse(INVALID_VALUE, "cuMemAllocFromPoolAsync: no such pool");
    return allocate_async(at, nbytes, *pool, context, stream);
}

CALL(cuMemFreeAsync, (Address at, void *stream), (at, stream))
{
    NEED(context);
    return at ? queue_free(context, stream, at) : OK;
}

CALL(cuDeviceGetDefaultMemPool, (int **pool, int device), (pool, device))
{
    if (!settings[POOLS])
        return NOT_SUPPORTED;
    *pool = &pools[device];
    return OK;
}

CALL(cuDeviceGetMemPool, (int **pool, int device), (pool, device))
{
    *pool = &pools[device];
    return OK;
}

CALL(cuMemPoolGetAttribute, (int *pool, int name, void *value), (pool, name, value))
{
    (void)pool;
    if (name <= 3)
        *(int *)value = 1;
    else
        *(uint64_t *)value = 0;
    return OK;
}

CALL(cuMemPoolSetAttribute, (int *pool, int name, void *value), (pool, name, value))
{
    (void)pool, (void)name, (void)value;
    return OK;
}

CALL(cuMemPoolTrimTo, (int *pool, size_t keep), (pool, keep))
{
    (void)pool, (void)keep;
    return OK;
}

static Status attribute(void *value, int name, Address at)
{
    Address start = 0;
    size_t nbytes = 0;
    Range *range = find_range(at);
    int device = range ? range->device : page_device(at, &start, &nbytes);
    if (device < 0)
        return INVALID_VALUE;
    if (range) {
        start = range->at;
        nbytes = range->nbytes;
    }
    switch (name) {
    case 1: *(Context **)value = &contexts[device]; break;
    case 2: *(unsigned *)value = range && range->kind == HOST_RANGE ? 1 : 2; break;
    case 3: *(Address *)value = at; break;
    case 4: *(Address *)value = range && range->kind != DEVICE_RANGE ? at : 0; break;
    case 7: *(unsigned long long *)value = start; break;
    case 8: *(int *)value = range && range->kind == MANAGED_RANGE; break;
    case 9: *(int *)value = device; break;
    case 11: *(Address *)value = start; break;
    case 12: *(size_t *)value = nbytes; break;
    default: *(int *)value = 0;
    }
    return OK;
}

CALL(cuPointerGetAttribute, (void *value, int name, Address at), (value, name, at))
{
    return attribute(value, name, at);
}

CALL(cuPointerGetAttributes, (unsigned count, int *names, void **values, Address at),
     (count, names, values, at))
{
    for (unsigned i = 0; i < count; i++)
        if (attribute(values[i], names[i], at) != OK) {
            if (names[i] == 1 || names[i] == 3 || names[i] == 4)
                *(Address *)values[i] = 0;
            else
                *(int *)values[i] = names[i] == 9 ? -2 : 0;
        }
    return OK;
}

CALL(cuMemGetAddressRange_v2, (Address *start, size_t *nbytes, Address at),
     (start, nbytes, at))
{
    Range *range = find_range(at);
    Address first = 0;
    size_t length = 0;
    if (range) {
        first = range->at;
        length = range->nbytes;
    } else if (page_device(at, &first, &length) < 0)
        return NOT_FOUND;
    if (start)
        *start = first;
    if (nbytes)
        *nbytes = length;
    return OK;
}

CALL(cuMemHostGetDevicePointer_v2, (Address *found, void *at, unsigned flags),
     (found, at, flags))
{
    (void)flags;
    *found = (Address)at;
    return OK;
}
