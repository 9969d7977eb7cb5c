/* What macOS, FreeBSD, NetBSD, OpenBSD and Android promise of mmap and its relatives,
 * emulated on Linux, for tests. It is no other system's kernel: it shows that madl uses
 * that system's own numbers and keeps its rules, not how that system's memory behaves.
 *
 * The numbers are those of the systems' own headers. It is stricter than they are: what
 * the BSDs would round, ignore or take for something else fails here with EINVAL and is
 * counted as a misuse; so is any call on addresses that are not mapped, a second munmap
 * among them. OS pages may be larger than the host's. One thread at a time.
 *
 * Build: gcc -shared -fPIC -o libposix.so posix.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "posix_ranges.h"

enum { MACOS, FREEBSD, NETBSD, OPENBSD, ANDROID, SYSTEMS };
static const char *const names[] = {"macos", "freebsd", "netbsd", "openbsd", "android"};

/* A flag of the system, and Linux's; 0 where it changes nothing here. */
static const struct flag { int theirs, ours; } flags[SYSTEMS][8] = {
    [MACOS] = {{0x2, MAP_PRIVATE}, {0x10, MAP_FIXED}, {0x1000, MAP_ANONYMOUS}, {0x40, 0}},
    [FREEBSD] = {{0x2, MAP_PRIVATE}, {0x10, MAP_FIXED}, {0x1000, MAP_ANONYMOUS}},
    [NETBSD] = {{0x2, MAP_PRIVATE}, {0x10, MAP_FIXED}, {0x1000, MAP_ANONYMOUS}, {0x40, 0}},
    [OPENBSD] = {{0x2, MAP_PRIVATE}, {0x10, MAP_FIXED}, {0x1000, MAP_ANONYMOUS}},
    [ANDROID] = {{0x2, MAP_PRIVATE}, {0x10, MAP_FIXED}, {0x20, MAP_ANONYMOUS},
                 {0x4000, MAP_NORESERVE}, {0x100000, MAP_FIXED_NOREPLACE}},
};

/* What an advice does. TRAP: the system takes it for something that frees nothing. */
enum { NONE, NOTHING, ASK, ZERO, REUSABLE, REUSE, TRAP, REFUSED };
static const char advice[SYSTEMS][32] = {
    [MACOS] = {[0] = NOTHING, [4] = TRAP, [5] = NOTHING, [7] = REUSABLE, [8] = REUSE},
    [FREEBSD] = {[0] = NOTHING, [4] = TRAP, [5] = NOTHING, [8] = TRAP},
    [NETBSD] = {[0] = NOTHING, [4] = TRAP, [5] = TRAP, [6] = NOTHING},
    [OPENBSD] = {[0] = NOTHING, [4] = TRAP, [5] = TRAP, [6] = NOTHING},
    /* Most devices' kernels have neither huge pages, 14 and 15, nor faulting in, 23. */
    [ANDROID] = {[0] = ASK, [4] = ZERO, [8] = NOTHING, [24] = ZERO,
                 [14] = REFUSED, [15] = REFUSED, [23] = REFUSED},
};

static int os;
static size_t page_nbytes, total_nbytes = (size_t)256 << 20;
static size_t discarded;
static long misuses, names_given, calls, failing_call, failing_count;
static int failing_errno;

void emulate(const char *name, size_t page)
{
    for (os = 0; os < SYSTEMS - 1 && strcmp(name, names[os]); os++)
        ;
    page_nbytes = page;
    range_count = 0, most_ranges = COUNT(ranges) - 8;
    commit_limit = SIZE_MAX;
    discarded = 0;
    misuses = names_given = calls = failing_call = failing_count = 0;
    tag = 0;
}

void emulated_fail(long call, int code, long count)
{
    failing_call = calls + call, failing_count = count, failing_errno = code;
}

void emulated_limit_commit(size_t nbytes) { commit_limit = nbytes; }
void emulated_limit_ranges(size_t count) { most_ranges = count; }
void emulated_tag(uintptr_t bits) { tag = bits; }
long emulated_misuses(void) { return misuses; }
void emulated_forgive(void) { misuses = 0; }
long emulated_names(void) { return names_given; }
long emulated_calls(void) { return calls; }

size_t emulated_discarded(void) { return discarded; }
size_t emulated_mapped(void) { return sum(0, 1); }
size_t emulated_usable(void) { return sum(READ_WRITE, 0); }

static int fail(int code) { errno = code; return -1; }
static int misuse(int code) { misuses++; return fail(code); }
static int is_failing(void)
{
    calls++;
    return calls >= failing_call && calls < failing_call + failing_count;
}

static int is_whole(uintptr_t address, size_t nbytes)
{
    return nbytes && !(address % page_nbytes) && !(nbytes % page_nbytes)
        && address + nbytes > address;
}

static void *host_map(void *address, size_t nbytes, int access, int how)
{
#ifdef SYS_mmap2
    return (void *)syscall(SYS_mmap2, address, nbytes, access, how, -1, 0);
#else
    return (void *)syscall(SYS_mmap, address, nbytes, access, how, -1, 0L);
#endif
}

/* Map at a multiple of the emulated page, which may be more than the host's. */
static void *host_map_anywhere(size_t nbytes, int access, int how)
{
    char *mapped = host_map(NULL, nbytes + page_nbytes, access, how | MAP_NORESERVE);
    if (mapped == MAP_FAILED)
        return mapped;
    char *start = (char *)(((uintptr_t)mapped + page_nbytes - 1) / page_nbytes * page_nbytes);
    if (start > mapped)
        syscall(SYS_munmap, mapped, start - mapped);
    if (mapped + page_nbytes > start)
        syscall(SYS_munmap, start + nbytes, mapped + page_nbytes - start);
    return start;
}

static void *map(void *at, size_t nbytes, int access, int how, int file, int64_t offset)
{
    uintptr_t address = (uintptr_t)(at = untagged(at));
    int left = how, host = 0;
    for (size_t i = 0; i < COUNT(flags[0]); i++)
        if (flags[os][i].theirs && left & flags[os][i].theirs)
            host |= flags[os][i].ours, left &= ~flags[os][i].theirs;
    if (os == ANDROID && left == 0x40000) /* of huge pages, none were set aside */
        return fail(ENOMEM), MAP_FAILED;
    int is_private = (host & (MAP_PRIVATE | MAP_ANONYMOUS)) == (MAP_PRIVATE | MAP_ANONYMOUS);
    if (left || !is_private || file != -1 || offset || (access && access != READ_WRITE))
        return misuse(EINVAL), MAP_FAILED;
    if (!nbytes || nbytes % page_nbytes)
        return misuse(EINVAL), MAP_FAILED;
    if (nbytes >> 1 >= (SIZE_MAX >> 18))
        return fail(ENOMEM), MAP_FAILED;
    if (is_failing())
        return fail(failing_errno), MAP_FAILED;
    /* What is lent, not promised, is no commit: macOS, and MAP_NORESERVE on Android. */
    int is_lent = os == MACOS || host & MAP_NORESERVE;
    void *mapped;
    if (host & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
        /* Where nothing of ours is mapped, MAP_FIXED destroys what somebody else has. */
        int is_fixed = !!(host & MAP_FIXED);
        if (!is_whole(address, nbytes))
            return misuse(EINVAL), MAP_FAILED;
        if (!is_mapped(address, address + nbytes, is_fixed))
            return is_fixed ? misuse(EINVAL) : fail(EEXIST), MAP_FAILED;
        if (!is_lent && is_too_much(address, address + nbytes, access))
            return fail(ENOMEM), MAP_FAILED;
        mapped = host_map(at, nbytes, access, host);
    } else {
        if (range_count + 1 > most_ranges || (access && !is_lent && nbytes > commit_limit))
            return fail(ENOMEM), MAP_FAILED;
        mapped = host_map_anywhere(nbytes, access, host);
    }
    if (mapped != MAP_FAILED)
        set((uintptr_t)mapped, (uintptr_t)mapped + nbytes, access, 0);
    return mapped == MAP_FAILED ? mapped : tagged(mapped);
}

/* Neither may call the other: by that name the host's own would be found. */
void *mmap(void *at, size_t nbytes, int access, int how, int file, off_t offset)
{
    return map(at, nbytes, access, how, file, offset);
}

void *mmap64(void *at, size_t nbytes, int access, int how, int file, int64_t offset)
{
    return map(at, nbytes, access, how, file, offset);
}

/* Check a range that a call is about; 0 when the call may go on. */
static int check(void *at, size_t nbytes)
{
    uintptr_t address = (uintptr_t)at;
    if (!is_whole(address, nbytes) || !is_mapped(address, address + nbytes, 1))
        return misuse(EINVAL);
    return is_failing() ? fail(failing_errno) : 0;
}

int munmap(void *at, size_t nbytes)
{
    uintptr_t address = (uintptr_t)(at = untagged(at));
    if (check(at, nbytes))
        return -1;
    if (range_count + 1 > most_ranges)
        return fail(ENOMEM);
    set(address, address + nbytes, -1, 0);
    return (int)syscall(SYS_munmap, at, nbytes);
}

int mprotect(void *at, size_t nbytes, int access)
{
    uintptr_t address = (uintptr_t)(at = untagged(at));
    if (check(at, nbytes))
        return -1;
    if (access && access != READ_WRITE)
        return misuse(EACCES);
    if (is_too_much(address, address + nbytes, access)) {
        /* Of several ranges, kernels may have changed the first before one fails. */
        if (range_count + 2 <= most_ranges) {
            set(address, address + page_nbytes, access, 0);
            syscall(SYS_mprotect, at, page_nbytes, access);
        }
        return fail(ENOMEM);
    }
    set(address, address + nbytes, access, 0);
    return (int)syscall(SYS_mprotect, at, nbytes, access);
}

int madvise(void *at, size_t nbytes, int which)
{
    uintptr_t address = (uintptr_t)(at = untagged(at));
    if (check(at, nbytes))
        return -1;
    switch ((unsigned)which < 32 ? advice[os][which] : NONE) {
    case NOTHING:
        return 0;
    case ASK:
        return (int)syscall(SYS_madvise, at, nbytes, which);
    case ZERO:
        discarded += nbytes;
        return (int)syscall(SYS_madvise, at, nbytes, MADV_DONTNEED);
    case REUSABLE:
    case REUSE:
        if (range_count + 2 > most_ranges)
            return fail(ENOMEM);
        /* Its content is undefined: 0xD5 is what nobody expects. */
        if (advice[os][which] == REUSABLE)
            memset(at, 0xD5, nbytes < 4096 ? nbytes : 4096);
        set(address, address + nbytes, READ_WRITE, advice[os][which] == REUSABLE);
        return 0;
    case TRAP:
        return misuse(EINVAL);
    case REFUSED:
        return fail(EINVAL);
    default:
        return misuse(EINVAL);
    }
}

/* Linux alone: move OS pages; the source stays mapped, and reads as zero. */
void *mremap(void *at, size_t nbytes, size_t new_nbytes, int how, ...)
{
    va_list arguments;
    va_start(arguments, how);
    void *to = untagged(va_arg(arguments, void *));
    va_end(arguments);
    uintptr_t address = (uintptr_t)to;
    at = untagged(at);
    if (os != ANDROID || how != 7 || nbytes != new_nbytes || !is_whole(address, nbytes)
        || !is_mapped(address, address + nbytes, 1))
        return misuse(EINVAL), MAP_FAILED;
    if (check(at, nbytes))
        return MAP_FAILED;
    void *moved = (void *)syscall(SYS_mremap, at, nbytes, nbytes, how, to);
    if (moved != MAP_FAILED)
        return set(address, address + nbytes, READ_WRITE, 0), tagged(moved);
    if (syscall(SYS_madvise, to, nbytes, MADV_NORMAL))
        set(address, address + nbytes, -1, 0); /* the kernel unmaps it, then looks */
    return moved;
}

int prctl(int option, unsigned long what, uintptr_t at, size_t nbytes, const char *name)
{
    if (os != ANDROID || option != 0x53564d41 || what != 0 || !name || !*name)
        return misuse(EINVAL);
    if (check((void *)(at & ~tag), nbytes))
        return -1;
    names_given++;
    return 0;
}

int android_get_device_api_level(void) { return 35; }

/* Half of the machine's memory is in use, a quarter is free, the rest inactive. */
int sysctlbyname(const char *name, void *value, size_t *nbytes, void *new, size_t new_nbytes)
{
    int is_quarter = !strcmp(name, "vm.stats.vm.v_free_count")
        || !strcmp(name, "vm.stats.vm.v_inactive_count");
    if (new || new_nbytes)
        return misuse(EPERM);
    if (os == MACOS && !strcmp(name, "hw.memsize") && *nbytes == 8)
        return *(uint64_t *)value = total_nbytes, 0;
    if (os == FREEBSD && is_quarter && *nbytes == 4)
        return *(uint32_t *)value = total_nbytes / page_nbytes / 4, 0;
    return misuse(ENOENT);
}

unsigned mach_host_self(void) { return 0x203; }

int host_statistics64(unsigned host, int flavour, uint32_t *found, unsigned *count)
{
    if (os != MACOS || host != 0x203 || flavour != 4 || *count != 38)
        return misuse(EINVAL), 4; /* KERN_INVALID_ARGUMENT */
    memset(found, 0, *count * sizeof *found);
    found[0] = found[2] = total_nbytes / page_nbytes / 4; /* free_count, inactive_count */
    found[1] = total_nbytes / page_nbytes / 2;
    return 0;
}
