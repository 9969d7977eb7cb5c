/* Which addresses are mapped, and with which access; for posix.c. */
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define READ_WRITE (PROT_READ | PROT_WRITE)

/* Mapped ranges in order of address; neighbours that are alike are one. */
static struct range { uintptr_t start, stop; char access, is_reusable; } ranges[4096];
static size_t range_count, most_ranges = COUNT(ranges) - 8;

static size_t commit_limit;

/* Bytes of at least an access. */
static size_t sum(int access, int with_reusable)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < range_count; i++)
        if ((ranges[i].access & access) == access && (with_reusable || !ranges[i].is_reusable))
            nbytes += ranges[i].stop - ranges[i].start;
    return nbytes;
}

/* Whether all of a range is mapped, or none of it (wanted 0). */
static int is_mapped(uintptr_t start, uintptr_t stop, int wanted)
{
    uintptr_t reached = start;
    for (size_t i = 0; i < range_count; i++) {
        if (ranges[i].stop <= start || ranges[i].start >= stop)
            continue;
        if (!wanted || ranges[i].start > reached)
            return 0;
        reached = ranges[i].stop;
    }
    return !wanted || reached >= stop;
}

/* Let a range be as given; access -1: not mapped. */
static void set(uintptr_t start, uintptr_t stop, int access, int is_reusable)
{
    static struct range next[COUNT(ranges)];
    size_t count = 0;
    int is_done = access < 0;
    for (size_t i = 0; i <= range_count; i++) {
        if (!is_done && (i == range_count || ranges[i].stop > start)) {
            if (i < range_count && ranges[i].start < start)
                next[count++] = (struct range){ranges[i].start, start, ranges[i].access,
                                               ranges[i].is_reusable};
            next[count++] = (struct range){start, stop, access, is_reusable};
            is_done = 1;
        } else if (i < range_count && ranges[i].start < start) {
            next[count] = ranges[i];
            if (next[count].stop > start)
                next[count].stop = start;
            count++;
        }
        if (i < range_count && ranges[i].stop > stop) {
            next[count] = ranges[i];
            if (next[count].start < stop)
                next[count].start = stop;
            count++;
        }
    }
    range_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct range *last = range_count ? &ranges[range_count - 1] : NULL;
        if (last && last->stop == next[i].start && last->access == next[i].access
            && last->is_reusable == next[i].is_reusable)
            last->stop = next[i].stop;
        else
            ranges[range_count++] = next[i];
    }
}

/* Whether a change of access is beyond what may be committed, or split. */
static int is_too_much(uintptr_t start, uintptr_t stop, int access)
{
    size_t before = 0;
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i].access && ranges[i].stop > start && ranges[i].start < stop)
            before += (ranges[i].stop < stop ? ranges[i].stop : stop)
                - (ranges[i].start > start ? ranges[i].start : start);
    return range_count + 2 > most_ranges
        || (access && sum(READ_WRITE, 1) - before + (stop - start) > commit_limit);
}

/* Addresses with a number in their top byte, as Android's heap has them. */
static uintptr_t tag;

static void *tagged(void *at) { return (void *)((uintptr_t)at | tag); }
static void *untagged(void *at) { return (void *)((uintptr_t)at & ~tag); }
