/* Reserved addresses, memory by handle, and which handle is mapped where. */
#define _GNU_SOURCE
#include "emulated.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct Handle {
    size_t nbytes;
    int device, is_held, mapped;
    char *memory;
    struct Handle *next;
} Handle;
typedef struct {
    Address at;
    size_t nbytes;
    Handle *handle;
    int access; /* 3 when the device may read and write */
} Mapping;
typedef struct Reservation {
    Address at;
    size_t nbytes;
    Mapping **of_granule;
    struct Reservation *next;
} Reservation;
typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; } Properties;
typedef struct { Location location; int flags; } Access;

static Handle *handles;
static Reservation *reservations;

static int is_whole(Address value) { return value && value % GRANULE == 0; }

static Reservation *find_reservation(Address at, size_t nbytes)
{
    for (Reservation *one = reservations; one; one = one->next)
        if (at >= one->at && at + nbytes <= one->at + one->nbytes)
            return one;
    return NULL;
}

static Mapping *mapping_at(Address at)
{
    Reservation *one = find_reservation(at, 1);
    return one ? one->of_granule[(at - one->at) / GRANULE] : NULL;
}

static Handle *find_handle(Address handle)
{
    for (Handle *one = handles; one; one = one->next)
        if ((Address)one == handle)
            return one;
    return NULL;
}

static void let_go(Handle *handle)
{
    if (handle->is_held || handle->mapped)
        return;
    for (Handle **link = &handles; *link; link = &(*link)->next)
        if (*link == handle) {
            *link = handle->next;
            break;
        }
    munmap(handle->memory, handle->nbytes);
    give_device_memory(handle->device, handle->nbytes);
    counts[HANDLES]--;
    free(handle);
}

char *reach_page(Address at, size_t *nbytes, int *is_reserved)
{
    *is_reserved = find_reservation(at, 1) != NULL;
    Mapping *mapping = *is_reserved ? mapping_at(at) : NULL;
    if (!mapping || mapping->access != 3)
        return NULL;
    size_t left = mapping->nbytes - (at - mapping->at);
    if (*nbytes > left)
        *nbytes = left;
    return mapping->handle->memory + (at - mapping->at);
}

int page_device(Address at, Address *start, size_t *nbytes)
{
    Mapping *mapping = mapping_at(at);
    if (!mapping)
        return -1;
    *start = mapping->at;
    *nbytes = mapping->nbytes;
    return mapping->handle->device;
}

#define NEED_PAGES                                                          \
    if (!settings[PAGES])                                                   \
    return NOT_SUPPORTED

CALL(cuMemGetAllocationGranularity, (size_t *nbytes, const Properties *of, int flags),
     (nbytes, of, flags))
{
    (void)flags;
    NEED_PAGES;
    if (of->type != 1 || of->location.type != 1)
        return misuse(INVALID_VALUE, "cuMemGetAllocationGranularity: properties");
    *nbytes = GRANULE;
    return OK;
}

MAKE(cuMemAddressReserve,
     (Address *at, size_t nbytes, size_t alignment, Address wish,
      unsigned long long flags),
     (at, nbytes, alignment, wish, flags))
{
    (void)wish;
    NEED_PAGES;
    if (!is_whole(nbytes) || flags || (alignment & (alignment - 1)))
        return misuse(INVALID_VALUE, "cuMemAddressReserve of %zu", nbytes);
    if (nbytes > (unsigned long long)(settings[ADDRESSES] - counts[ADDRESS_NBYTES]))
        return OUT_OF_MEMORY;
    if (alignment < GRANULE)
        alignment = GRANULE;
    char *start = mmap(NULL, nbytes + alignment, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return OUT_OF_MEMORY;
    size_t skipped = -(uintptr_t)start & (alignment - 1);
    if (skipped)
        munmap(start, skipped);
    munmap(start + skipped + nbytes, alignment - skipped);
    Reservation *one = calloc(1, sizeof *one);
    *one = (Reservation){(Address)(start + skipped), nbytes,
                         calloc(nbytes / GRANULE, sizeof(Mapping *)), reservations};
    reservations = one;
    counts[RESERVATIONS]++;
    counts[ADDRESS_NBYTES] += (long long)nbytes;
    *at = one->at;
    return OK;
}

CALL(cuMemAddressFree, (Address at, size_t nbytes), (at, nbytes))
{
    NEED_PAGES;
    for (Reservation **link = &reservations; *link; link = &(*link)->next) {
        Reservation *one = *link;
        if (one->at != at || one->nbytes != nbytes)
            continue;
        for (size_t i = 0; i < nbytes / GRANULE; i++)
            if (one->of_granule[i])
                return misuse(INVALID_VALUE, "cuMemAddressFree of mapped addresses");
        *link = one->next;
        munmap((void *)at, nbytes);
        counts[RESERVATIONS]--;
        counts[ADDRESS_NBYTES] -= (long long)nbytes;
        free(one->of_granule);
        free(one);
        return OK;
    }
    return misuse(INVALID_VALUE, "cuMemAddressFree of %#llx, not reserved so", at);
}

MAKE(cuMemCreate,
     (Address *handle, size_t nbytes, const Properties *of, unsigned long long flags),
     (handle, nbytes, of, flags))
{
    NEED_PAGES;
    UNSAFE_IN_CAPTURE("cuMemCreate");
    if (!is_whole(nbytes) || flags || of->type != 1 || of->location.type != 1)
        return misuse(INVALID_VALUE, "cuMemCreate of %zu", nbytes);
    if (of->location.id < 0 || of->location.id >= settings[DEVICES])
        return misuse(INVALID_DEVICE, "cuMemCreate on %d", of->location.id);
    Status status = take_device_memory(of->location.id, nbytes);
    if (status != OK)
        return status;
    Handle *one = calloc(1, sizeof *one);
    *one = (Handle){nbytes, of->location.id, 1, 0, new_memory(nbytes), handles};
    handles = one;
    counts[HANDLES]++;
    *handle = (Address)one;
    return OK;
}

CALL(cuMemRelease, (Address handle), (handle))
{
    NEED_PAGES;
    Handle *one = find_handle(handle);
    if (!one || !one->is_held)
        return misuse(INVALID_VALUE, "cuMemRelease of no handle, or twice");
    one->is_held = 0;
    let_go(one);
    return OK;
}

CALL(cuMemMap,
     (Address at, size_t nbytes, size_t offset, Address handle,
      unsigned long long flags),
     (at, nbytes, offset, handle, flags))
{
    NEED_PAGES;
    UNSAFE_IN_CAPTURE("cuMemMap");
    Reservation *one = find_reservation(at, nbytes);
    Handle *what = find_handle(handle);
    if (!one || !what || flags || offset || nbytes != what->nbytes
        || (at - one->at) % GRANULE)
        return misuse(INVALID_VALUE, "cuMemMap at %#llx of %zu", at, nbytes);
    size_t first = (at - one->at) / GRANULE, stop = first + nbytes / GRANULE;
    for (size_t i = first; i < stop; i++)
        if (one->of_granule[i])
            return misuse(INVALID_VALUE, "cuMemMap where something is mapped");
    Mapping *mapping = calloc(1, sizeof *mapping);
    *mapping = (Mapping){at, nbytes, what, 0};
    for (size_t i = first; i < stop; i++)
        one->of_granule[i] = mapping;
    what->mapped++;
    counts[MAPPINGS]++;
    return OK;
}

/* One mapping, whole: whether several may go in one call, nobody promises. */
CALL(cuMemUnmap, (Address at, size_t nbytes), (at, nbytes))
{
    NEED_PAGES;
    UNSAFE_IN_CAPTURE("cuMemUnmap");
    Mapping *mapping = mapping_at(at);
    if (!mapping || mapping->at != at || mapping->nbytes != nbytes)
        return misuse(INVALID_VALUE, "cuMemUnmap of %#llx, not mapped so", at);
    Reservation *one = find_reservation(at, nbytes);
    for (size_t i = 0; i < nbytes / GRANULE; i++)
        one->of_granule[(at - one->at) / GRANULE + i] = NULL;
    mapping->handle->mapped--;
    counts[MAPPINGS]--;
    let_go(mapping->handle);
    free(mapping);
    return OK;
}

CALL(cuMemSetAccess,
     (Address at, size_t nbytes, const Access *to, size_t count),
     (at, nbytes, to, count))
{
    NEED_PAGES;
    UNSAFE_IN_CAPTURE("cuMemSetAccess");
    if (count != 1 || to->location.type != 1 || !nbytes)
        return misuse(INVALID_VALUE, "cuMemSetAccess for %zu places", count);
    for (int is_checked = 0; is_checked < 2; is_checked++)
        for (Address next = at; next < at + nbytes;) {
            Mapping *mapping = mapping_at(next);
            if (!mapping || mapping->at != next
                || next + mapping->nbytes > at + nbytes)
                return misuse(INVALID_VALUE, "cuMemSetAccess of what is not mapped");
            if (mapping->handle->device != to->location.id)
                return misuse(INVALID_DEVICE, "cuMemSetAccess for another device");
            if (is_checked)
                mapping->access = to->flags;
            next += mapping->nbytes;
        }
    return OK;
}

/* What a test may ask: whether the device can use an address now. */
EXPORT int emulated_is_usable(Address at, size_t nbytes)
{
    while (nbytes) {
        size_t part = nbytes;
        int is_reserved;
        if (!reach_page(at, &part, &is_reserved))
            return 0;
        at += part;
        nbytes -= part;
    }
    return 1;
}

/* What a test may do: take back the handles that a failed release has left. */
EXPORT void emulated_take_handles(void)
{
    for (Handle *one = handles, *next; one; one = next) {
        next = one->next;
        one->is_held = 0;
        let_go(one);
    }
}
