/* A pool of one CUDA device that other allocators call into, with their locks held.
 *
 * Nothing here touches Python or needs the interpreter's lock: a thread that holds it may
 * wait for the pool's own lock, never the other way round. Memory is placed first fit
 * in one range of addresses and committed at its end, by the driver's functions. A
 * stream uses what it freed at once; a free only queues. */
#ifndef MADL_DEVICE_POOL_H
#define MADL_DEVICE_POOL_H

#include "address_index.h"

#include <pythread.h>
#if defined(_WIN32)
#define MADL_EXPORT __declspec(dllexport)
#define watch_forks() 0
#else
#include <pthread.h>
#define MADL_EXPORT __attribute__((visibility("default")))
#define watch_forks() pthread_atfork(NULL, NULL, note_fork)
#endif

enum { MADL_MOST_DEVICES = 64, MADL_GRANULE = 512, MADL_RELAXED = 2 };

typedef void *Stream;
typedef unsigned long long Address;

/* Of the driver, in the order in which Python passes them. */
typedef struct {
    int (*create)(Address *handle, size_t nbytes, const void *properties,
                  Address flags);
    int (*map)(Address at, size_t nbytes, size_t offset, Address handle, Address flags);
    int (*allow)(Address at, size_t nbytes, const void *access, size_t count);
    int (*unmap)(Address at, size_t nbytes);
    int (*release)(Address handle);
    int (*enter)(void *context);
    int (*leave)(void **context);
    int (*exchange_capture_mode)(int *mode);
    int (*is_capturing)(Stream stream, int *state);
    int (*record)(void *event, Stream stream);
    int (*wait)(Stream stream, void *event, unsigned flags);
    int (*synchronize)(void);
} DriverCalls;

typedef struct Lane {
    Stream stream;
    Block *free;
    struct Lane *next;
} Lane;

typedef struct Use {
    Stream stream;
    struct Use *next;
} Use;

/* What one commit has taken. They lie one after the other, from the start. */
typedef struct {
    Address handle;
    uint64_t nbytes;
} Segment;

typedef struct {
    uint64_t live_nbytes, live_high_water, committed_nbytes, committed_high_water;
    uint64_t allocation_count, free_count, refused_count, unknown_free_count;
    int last_status; /* of the driver's last refusal */
} DevicePoolStats;

typedef struct {
    DriverCalls calls;
    void *context, *event;
    const void *properties, *access;
    Address base;
    uint64_t reserved_nbytes, page_nbytes, limit_nbytes;
} DevicePoolSetup;

typedef struct {
    DevicePoolSetup setup;
    PyThread_type_lock lock;
    uint32_t seed;
    Lane *lanes;
    Block *live; /* an index */
    Block *last;
    Block *parked; /* free, and to be ordered behind its uses */
    Segment *segments;
    size_t segment_count, segment_room;
    DevicePoolStats stats;
} DevicePool;

static DevicePool *device_pools[MADL_MOST_DEVICES];
static int is_forked_child; /* where no driver works that the parent has used */

static inline void note_fork(void) { is_forked_child = 1; }

static inline uint64_t up_to(uint64_t nbytes, uint64_t unit) {
    return (nbytes + unit - 1) / unit * unit;
}

/* The pool of a device, locked; NULL where there is none, or in a forked child. */
static DevicePool *enter_pool(int device) {
    DevicePool *pool = NULL;
    if (device >= 0 && device < MADL_MOST_DEVICES) pool = device_pools[device];
    if (!pool || is_forked_child) return NULL;
    PyThread_acquire_lock(pool->lock, WAIT_LOCK);
    return pool;
}

static inline void leave_pool(DevicePool *pool) { PyThread_release_lock(pool->lock); }

static inline int is_free(const Block *block) {
    return block && !block->is_live && !block->is_parked;
}

static Lane *lane_of(DevicePool *pool, Stream stream) {
    Lane *lane = pool->lanes;
    if (!stream) stream = (Stream)1; /* two names of the legacy default stream */
    while (lane && lane->stream != stream) lane = lane->next;
    if (!lane && (lane = calloc(1, sizeof *lane))) {
        lane->stream = stream;
        lane->next = pool->lanes;
        pool->lanes = lane;
    }
    return lane;
}

/* A block between two others, or NULL when there is no memory for it. */
static Block *new_block(DevicePool *pool, Block *before, Block *after, Lane *lane) {
    Block *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    pool->seed = pool->seed * 1664525u + 1013904223u;
    block->priority = pool->seed;
    block->lane = lane;
    block->before = before;
    block->after = after;
    if (before) before->after = block;
    if (after) after->before = block;
    else pool->last = block;
    return block;
}

/* Drop the record of a block that lies in no index; its neighbours meet. */
static void drop_block(DevicePool *pool, Block *block) {
    if (block->before) block->before->after = block->after;
    if (block->after) block->after->before = block->before;
    else pool->last = block->before;
    free(block);
}

/* Put a block into its lane's index, joined with its free neighbours there. */
static void put_block(DevicePool *pool, Block *block) {
    Lane *lane = block->lane;
    Block *before = block->before, *after = block->after;
    if (is_free(before) && before->lane == lane) {
        remove_block(&lane->free, before);
        block->offset = before->offset;
        block->nbytes += before->nbytes;
        drop_block(pool, before);
    }
    if (is_free(after) && after->lane == lane) {
        remove_block(&lane->free, after);
        block->nbytes += after->nbytes;
        drop_block(pool, after);
    }
    insert_block(&lane->free, block);
}

/* The first block of a lane that fits, cut to size, or NULL. Also where there is no
 * memory for the record of the rest: the whole may be all that the device has. */
static Block *take_block(DevicePool *pool, Lane *lane, uint64_t nbytes) {
    Block *block = first_fit(lane->free, nbytes), *rest = NULL;
    if (!block) return NULL;
    if (block->nbytes > nbytes && !(rest = new_block(pool, block, block->after, lane)))
        return NULL;
    remove_block(&lane->free, block);
    if (rest) {
        rest->offset = block->offset + nbytes;
        rest->nbytes = block->nbytes - nbytes;
        block->nbytes = nbytes;
        insert_block(&lane->free, rest);
    }
    block->is_live = 1;
    insert_block(&pool->live, block);
    return block;
}

#endif
