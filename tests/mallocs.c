/* malloc, calloc and realloc that fail in a call of the compiled core: for LD_PRELOAD.
 *
 * Whose call it is tells the address that it returns to. */
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t nbytes);
extern void *__libc_calloc(size_t count, size_t nbytes);
extern void *__libc_realloc(void *pointer, size_t nbytes);

enum { MOST_RANGES = 64 };
static struct { uintptr_t start, stop; } ranges[MOST_RANGES];
static int range_count;
static volatile long first, last, calls;
static volatile uintptr_t site; /* of the first that failed */

/* Count calls from these addresses. */
void mallocs_watch(uintptr_t start, uintptr_t stop) {
    if (range_count < MOST_RANGES) {
        ranges[range_count].start = start;
        ranges[range_count++].stop = stop;
    }
}

/* Let the calls of these numbers fail, counted from the next; 0 for none. */
void mallocs_fail(long from, long to) {
    first = from;
    last = to;
    calls = 0;
    site = 0;
}

uintptr_t mallocs_site(void) { return site; }

static int fails(void *caller) {
    uintptr_t at = (uintptr_t)caller;
    int i;
    if (!first) return 0;
    for (i = 0; i < range_count; i++)
        if (at >= ranges[i].start && at < ranges[i].stop) {
            calls++;
            if (calls < first || calls > last) return 0;
            if (!site) site = at;
            return 1;
        }
    return 0;
}

void *malloc(size_t nbytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(nbytes);
}

void *calloc(size_t count, size_t nbytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, nbytes);
}

void *realloc(void *pointer, size_t nbytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(pointer, nbytes);
}
