/* Regions of address space, the OS pages in them, and VirtualQuery. */
#define _GNU_SOURCE
#include "kernel32.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SEALED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

typedef struct {
    ADDRESS base, allocation_base;
    DWORD allocation_protection;
    WORD partition, padding;
    SIZE_T nbytes;
    DWORD state, protection, type, more_padding;
} MemoryInformation;

static Region *head;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void emu_lock(void) { pthread_mutex_lock(&mutex); }

void emu_unlock(void) { pthread_mutex_unlock(&mutex); }

SIZE_T emu_round_up(SIZE_T nbytes, SIZE_T multiple)
{
    return (nbytes + multiple - 1) & ~(multiple - 1);
}

Region *emu_find(ADDRESS address)
{
    for (Region *region = head; region; region = region->next)
        if (address >= region->base && address - region->base < region->nbytes)
            return region;
    return NULL;
}

SIZE_T emu_region_count(void)
{
    SIZE_T count = 0;
    for (Region *region = head; region; region = region->next)
        count++;
    return count;
}

static BOOL is_taken(ADDRESS from, SIZE_T nbytes)
{
    for (Region *region = head; region; region = region->next)
        if (from < region->base + region->nbytes && region->base < from + nbytes)
            return 1;
    return 0;
}

static uint8_t *new_protection(SIZE_T nbytes)
{
    void *memory = mmap(NULL, nbytes / OS_PAGE, PROT_READ | PROT_WRITE, SEALED, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void insert(Region *region)
{
    Region **link = &head;
    while (*link && (*link)->base < region->base)
        link = &(*link)->next;
    region->next = *link;
    *link = region;
}

static void forget(Region *region)
{
    Region **link = &head;
    while (*link != region)
        link = &(*link)->next;
    *link = region->next;
    emu_committed -= region->committed * OS_PAGE;
    munmap(region->protection, region->nbytes / OS_PAGE);
    free(region);
}

/* Addresses at a multiple of the alignment, and nothing around them. */
static ADDRESS take_addresses(ADDRESS at, SIZE_T span, SIZE_T alignment)
{
    if (at) {
        void *got =
            mmap((void *)at, span, PROT_NONE, SEALED | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != MAP_FAILED && (ADDRESS)got != at) {
            munmap(got, span);
            got = MAP_FAILED;
        }
        return got == MAP_FAILED ? (ADDRESS)emu_fail(ERROR_INVALID_ADDRESS) : at;
    }
    void *got = mmap(NULL, span + alignment, PROT_NONE, SEALED, -1, 0);
    if (got == MAP_FAILED)
        return (ADDRESS)emu_fail(ERROR_NOT_ENOUGH_MEMORY);
    ADDRESS start = (ADDRESS)got, base = emu_round_up(start, alignment);
    if (base > start)
        munmap(got, base - start);
    munmap((void *)(base + span), start + alignment - base);
    return base;
}

Region *emu_reserve(ADDRESS at, SIZE_T nbytes, SIZE_T alignment, DWORD protection)
{
    SIZE_T span = emu_round_up(nbytes, GRANULARITY);
    if (at && is_taken(at, nbytes)) {
        emu_fail(ERROR_INVALID_ADDRESS);
        return NULL;
    }
    ADDRESS base = take_addresses(at, span, alignment);
    if (!base)
        return NULL;
    Region *region = calloc(1, sizeof *region);
    region->base = base;
    region->nbytes = nbytes;
    region->first_protection = protection;
    region->protection = new_protection(nbytes);
    if (!region->protection) {
        munmap((void *)base, span);
        free(region);
        emu_fail(ERROR_NOT_ENOUGH_MEMORY);
        return NULL;
    }
    insert(region);
    return region;
}

void emu_drop(Region *region)
{
    munmap((void *)region->base, emu_round_up(region->nbytes, GRANULARITY));
    forget(region);
}

void emu_drop_all(void)
{
    while (head)
        emu_drop(head);
}

static int native_protection(DWORD protection)
{
    if (protection & PAGE_GUARD)
        return PROT_NONE;
    if (protection == PAGE_READONLY)
        return PROT_READ;
    return protection == PAGE_READWRITE ? PROT_READ | PROT_WRITE : PROT_NONE;
}

BOOL emu_commit(Region *region, ADDRESS from, ADDRESS end, DWORD protection)
{
    SIZE_T first = (from - region->base) / OS_PAGE;
    SIZE_T stop = (end - region->base) / OS_PAGE;
    SIZE_T fresh = 0;
    for (SIZE_T page = first; page < stop; page++)
        fresh += !region->protection[page];
    if (emu_committed + fresh * OS_PAGE > emu_commit_limit)
        return emu_fail(ERROR_COMMITMENT_LIMIT);
    if (mprotect((void *)from, end - from, native_protection(protection)) != 0)
        return emu_fail(ERROR_NOT_ENOUGH_MEMORY);
    memset(region->protection + first, (int)protection, stop - first);
    region->committed += fresh;
    emu_committed += fresh * OS_PAGE;
    return 1;
}

BOOL emu_decommit(Region *region, ADDRESS from, ADDRESS end)
{
    SIZE_T first = (from - region->base) / OS_PAGE;
    SIZE_T stop = (end - region->base) / OS_PAGE;
    if (mmap((void *)from, end - from, PROT_NONE, SEALED | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        return emu_fail(ERROR_NOT_ENOUGH_MEMORY);
    for (SIZE_T page = first; page < stop; page++)
        if (region->protection[page]) {
            region->protection[page] = 0;
            region->committed--;
            emu_committed -= OS_PAGE;
        }
    return 1;
}

/* Of placeholders, which have nothing committed. */
static void resize(Region *region, SIZE_T nbytes)
{
    munmap(region->protection, region->nbytes / OS_PAGE);
    region->protection = new_protection(nbytes);
    region->nbytes = nbytes;
}

/* Cut a placeholder in two, and return the upper. */
Region *emu_cut(Region *region, ADDRESS at)
{
    Region *upper = malloc(sizeof *upper);
    *upper = *region;
    upper->base = at;
    upper->nbytes = region->base + region->nbytes - at;
    upper->protection = new_protection(upper->nbytes);
    resize(region, at - region->base);
    insert(upper);
    return upper;
}

/* Join a placeholder and those after it, up to an end. */
void emu_join(Region *region, ADDRESS end)
{
    while (region->base + region->nbytes < end) {
        SIZE_T nbytes = region->nbytes + region->next->nbytes;
        forget(region->next);
        resize(region, nbytes);
    }
}

EXPORTED SIZE_T VirtualQuery(ADDRESS at, MemoryInformation *answer, SIZE_T nbytes)
{
    ADDRESS page = at & ~(OS_PAGE - 1);
    if (nbytes < sizeof *answer)
        return (SIZE_T)emu_fail(ERROR_BAD_LENGTH);
    if (page > HIGHEST)
        return (SIZE_T)emu_fail(ERROR_INVALID_PARAMETER);
    memset(answer, 0, sizeof *answer);
    answer->base = page;
    emu_lock();
    Region *region = emu_find(page);
    if (region) {
        SIZE_T index = (page - region->base) / OS_PAGE, stop = index;
        SIZE_T count = region->nbytes / OS_PAGE;
        uint8_t protection = region->protection[index];
        while (stop < count && region->protection[stop] == protection)
            stop++;
        answer->allocation_base = region->base;
        answer->allocation_protection = region->first_protection;
        answer->nbytes = (stop - index) * OS_PAGE;
        answer->state = protection ? MEM_COMMIT : MEM_RESERVE;
        answer->protection = protection;
    } else {
        answer->state = MEM_FREE;
        answer->protection = PAGE_NOACCESS;
    }
    emu_unlock();
    return sizeof *answer;
}
