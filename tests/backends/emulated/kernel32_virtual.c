/* VirtualAlloc, VirtualAllocExNuma, VirtualAlloc2, VirtualFree. */
#include "kernel32.h"

typedef struct {
    uint64_t type;
    union {
        void *pointer;
        DWORD number;
    };
} ExtendedParameter;

enum { ADDRESS_REQUIREMENTS = 1, NUMA_NODE = 3 };

typedef struct {
    ADDRESS lowest, highest;
    SIZE_T alignment;
} AddressRequirements;

static BOOL is_protection(DWORD protection)
{
    DWORD base = protection & ~(DWORD)PAGE_GUARD;
    BOOL is_one = base && base <= 0xFF && (base & (base - 1)) == 0;
    /* copy on write is of files only; what nobody may touch needs no guard */
    return is_one && base != PAGE_WRITECOPY && base != PAGE_EXECUTE_WRITECOPY &&
           protection != (PAGE_GUARD | PAGE_NOACCESS);
}

/* Why no memory would do, whatever its state; 0 for nothing. */
static DWORD mistake_in(ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection)
{
    const DWORD known = MEM_COMMIT | MEM_RESERVE | MEM_TOP_DOWN | MEM_LARGE_PAGES |
                        MEM_RESERVE_PLACEHOLDER | MEM_REPLACE_PLACEHOLDER;
    const DWORD both = MEM_COMMIT | MEM_RESERVE;

    if (!nbytes || at > HIGHEST || nbytes > HIGHEST - at)
        return ERROR_INVALID_PARAMETER;
    if (!is_protection(protection) || !(type & both) || (type & ~known))
        return ERROR_INVALID_PARAMETER;
    if ((type & MEM_LARGE_PAGES) && (type & both) != both)
        return ERROR_INVALID_PARAMETER;
    if ((type & MEM_RESERVE_PLACEHOLDER) &&
        (protection != PAGE_NOACCESS || (type & (MEM_COMMIT | MEM_LARGE_PAGES))))
        return ERROR_INVALID_PARAMETER;
    if ((type & MEM_LARGE_PAGES) && !emu_is_lock_memory_enabled)
        return ERROR_PRIVILEGE_NOT_HELD;
    if ((type & MEM_LARGE_PAGES) && (nbytes % LARGE_PAGE || at % LARGE_PAGE))
        return ERROR_INVALID_PARAMETER;
    return 0;
}

/* Where memory shall be: it has to be an answer to what is reserved anew. */
typedef struct {
    SIZE_T alignment;
    DWORD node;
} Place;

static ADDRESS
replace(ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection, Place place)
{
    Region *region = emu_find(at);
    if (!region || !region->is_placeholder || region->base != at ||
        region->nbytes != nbytes)
        return (ADDRESS)emu_fail(ERROR_INVALID_ADDRESS);
    if ((type & MEM_COMMIT) && !emu_commit(region, at, at + nbytes, protection))
        return 0;
    region->is_placeholder = 0;
    region->is_large = !!(type & MEM_LARGE_PAGES);
    region->first_protection = protection;
    region->node = place.node;
    return at;
}

static ADDRESS
reserve(ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection, Place place)
{
    SIZE_T alignment = place.alignment;
    ADDRESS base = at & ~(GRANULARITY - 1);
    ADDRESS end = emu_round_up(at + nbytes, OS_PAGE);
    if (alignment < GRANULARITY)
        alignment = GRANULARITY;
    if ((type & MEM_LARGE_PAGES) && alignment < LARGE_PAGE)
        alignment = LARGE_PAGE;
    if ((type & MEM_COMMIT) && emu_committed + (end - base) > emu_commit_limit)
        return (ADDRESS)emu_fail(ERROR_COMMITMENT_LIMIT);
    Region *region = emu_reserve(base, end - base, alignment, protection);
    if (!region)
        return 0;
    region->node = place.node;
    region->is_placeholder = !!(type & MEM_RESERVE_PLACEHOLDER);
    region->is_large = !!(type & MEM_LARGE_PAGES);
    ADDRESS stop = region->base + region->nbytes;
    if ((type & MEM_COMMIT) && !emu_commit(region, region->base, stop, protection)) {
        emu_drop(region);
        return 0;
    }
    return region->base;
}

static ADDRESS
allocate(ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection, Place place)
{
    DWORD mistake = mistake_in(at, nbytes, type, protection);
    if (place.node != ANY_NODE && place.node > HIGHEST_NODE)
        mistake = ERROR_INVALID_PARAMETER;
    if (mistake)
        return (ADDRESS)emu_fail(mistake);
    if (emu_is_failing())
        return 0;
    if (type & MEM_REPLACE_PLACEHOLDER)
        return replace(at, nbytes, type, protection, place);
    if ((type & MEM_RESERVE) || !at)
        return reserve(at, nbytes, type, protection, place);
    ADDRESS from = at & ~(OS_PAGE - 1), end = emu_round_up(at + nbytes, OS_PAGE);
    Region *region = emu_find(at);
    if (!region || region->is_placeholder || end > region->base + region->nbytes)
        return (ADDRESS)emu_fail(ERROR_INVALID_ADDRESS);
    return emu_commit(region, from, end, protection) ? from : 0;
}

EXPORTED ADDRESS VirtualAllocExNuma(
    ADDRESS process, ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection,
    DWORD node)
{
    if (process != (ADDRESS)-1)
        return (ADDRESS)emu_fail(ERROR_INVALID_HANDLE);
    if (type & (MEM_RESERVE_PLACEHOLDER | MEM_REPLACE_PLACEHOLDER))
        return (ADDRESS)emu_fail(ERROR_INVALID_PARAMETER);
    emu_lock();
    Place place = {0, node};
    ADDRESS result = allocate(at, nbytes, type, protection, place);
    emu_unlock();
    return result;
}

EXPORTED ADDRESS VirtualAlloc(ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection)
{
    return VirtualAllocExNuma((ADDRESS)-1, at, nbytes, type, protection, ANY_NODE);
}

/* Which node the memory at an address is preferred of; for tests. */
EXPORTED DWORD EmuNodeOf(ADDRESS at)
{
    emu_lock();
    Region *region = emu_find(at);
    DWORD node = region ? region->node : ANY_NODE;
    emu_unlock();
    return node;
}

EXPORTED ADDRESS VirtualAlloc2(
    ADDRESS process, ADDRESS at, SIZE_T nbytes, DWORD type, DWORD protection,
    const ExtendedParameter *parameters, DWORD count)
{
    Place place = {0, ANY_NODE};
    if (process != (ADDRESS)-1 && process != 0)
        return (ADDRESS)emu_fail(ERROR_INVALID_HANDLE);
    for (DWORD index = 0; index < count; index++) {
        if (parameters[index].type == NUMA_NODE) {
            place.node = parameters[index].number;
            continue;
        }
        if (parameters[index].type != ADDRESS_REQUIREMENTS)
            return (ADDRESS)emu_fail(ERROR_INVALID_PARAMETER);
        const AddressRequirements *wanted = parameters[index].pointer;
        SIZE_T alignment = place.alignment = wanted->alignment;
        BOOL is_power = (alignment & (alignment - 1)) == 0;
        if (wanted->lowest || wanted->highest || !is_power || at ||
            (alignment && alignment < GRANULARITY))
            return (ADDRESS)emu_fail(ERROR_INVALID_PARAMETER);
    }
    if (nbytes % OS_PAGE || at % GRANULARITY)
        return (ADDRESS)emu_fail(ERROR_INVALID_PARAMETER);
    emu_lock();
    ADDRESS result = allocate(at, nbytes, type, protection, place);
    emu_unlock();
    return result;
}

/* What was allocated in a placeholder's place becomes one; a placeholder is cut. */
static BOOL preserve(Region *region, ADDRESS from, ADDRESS end)
{
    ADDRESS stop = region->base + region->nbytes;
    if (from == end || end > stop)
        return emu_fail(ERROR_INVALID_PARAMETER);
    BOOL is_whole = from == region->base && end == stop;
    if (is_whole == region->is_placeholder)
        return emu_fail(ERROR_INVALID_ADDRESS);
    if (!region->is_placeholder) {
        region->is_placeholder = 1;
        region->is_large = 0;
        region->first_protection = PAGE_NOACCESS;
        return emu_decommit(region, from, end);
    }
    if (from % GRANULARITY || end % GRANULARITY)
        return emu_fail(ERROR_INVALID_PARAMETER);
    if (from > region->base)
        region = emu_cut(region, from);
    if (end < stop)
        emu_cut(region, end);
    return 1;
}

static BOOL coalesce(Region *region, ADDRESS from, ADDRESS end)
{
    ADDRESS stop = region->base;
    SIZE_T count = 0;
    if (from == end || from != region->base)
        return emu_fail(ERROR_INVALID_ADDRESS);
    for (Region *piece = region; piece && stop < end; piece = piece->next) {
        if (!piece->is_placeholder || piece->base != stop)
            return emu_fail(ERROR_INVALID_ADDRESS);
        stop += piece->nbytes;
        count++;
    }
    if (stop != end || count < 2)
        return emu_fail(ERROR_INVALID_ADDRESS);
    emu_join(region, end);
    return 1;
}

static BOOL decommit(Region *region, ADDRESS at, SIZE_T nbytes)
{
    ADDRESS from = at & ~(OS_PAGE - 1), end = emu_round_up(at + nbytes, OS_PAGE);
    if (region->is_placeholder)
        return emu_fail(ERROR_INVALID_ADDRESS);
    if (region->is_large)
        return emu_fail(ERROR_INVALID_PARAMETER);
    if (!nbytes) {
        if (at != region->base)
            return emu_fail(ERROR_INVALID_ADDRESS);
        end = region->base + region->nbytes;
    }
    if (end > region->base + region->nbytes)
        return emu_fail(ERROR_INVALID_PARAMETER);
    return emu_decommit(region, from, end);
}

static BOOL release(ADDRESS at, SIZE_T nbytes, DWORD type)
{
    DWORD option = type & (MEM_PRESERVE_PLACEHOLDER | MEM_COALESCE_PLACEHOLDERS);
    DWORD what = type & ~option;
    if ((what != MEM_DECOMMIT && what != MEM_RELEASE) ||
        (option && what != MEM_RELEASE) || option == 3 ||
        (what == MEM_RELEASE && nbytes && !option))
        return emu_fail(ERROR_INVALID_PARAMETER);
    if (emu_is_failing())
        return 0;
    Region *region = emu_find(at);
    if (!region)
        return emu_fail(ERROR_INVALID_ADDRESS);
    if (what == MEM_DECOMMIT)
        return decommit(region, at, nbytes);
    ADDRESS from = at & ~(OS_PAGE - 1), end = emu_round_up(at + nbytes, OS_PAGE);
    if (option == MEM_PRESERVE_PLACEHOLDER)
        return preserve(region, from, end);
    if (option == MEM_COALESCE_PLACEHOLDERS)
        return coalesce(region, from, end);
    if (at != region->base)
        return emu_fail(ERROR_INVALID_ADDRESS);
    emu_drop(region);
    return 1;
}

EXPORTED BOOL VirtualFree(ADDRESS at, SIZE_T nbytes, DWORD type)
{
    emu_lock();
    BOOL result = release(at, nbytes, type);
    emu_unlock();
    return result;
}
