/* What other allocators call, and what checks a pool. */
#ifndef MADL_DEVICE_CALLS_H
#define MADL_DEVICE_CALLS_H

#include "device_growth.h"

/* The signatures are those of PyTorch's CUDAPluggableAllocator. */
MADL_EXPORT void *madl_device_malloc(Py_ssize_t nbytes, int device, void *stream) {
    uint64_t capacity = up_to((uint64_t)nbytes, MADL_GRANULE);
    DevicePool *pool = nbytes > 0 ? enter_pool(device) : NULL;
    Block *block = NULL;
    Address address = 0;
    Lane *lane;
    if (!pool) return NULL;
    lane = lane_of(pool, stream);
    if (lane && capacity <= pool->setup.limit_nbytes)
        block = place_block(pool, lane, capacity);
    if (block) {
        DevicePoolStats *stats = &pool->stats;
        address = pool->setup.base + block->offset;
        stats->allocation_count++;
        stats->live_nbytes += block->nbytes;
        if (stats->live_nbytes > stats->live_high_water)
            stats->live_high_water = stats->live_nbytes;
    } else {
        pool->stats.refused_count++;
    }
    leave_pool(pool);
    return (void *)(uintptr_t)address;
}

MADL_EXPORT void madl_device_free(void *pointer, Py_ssize_t nbytes, int device,
                                  void *stream) {
    DevicePool *pool = pointer ? enter_pool(device) : NULL;
    Block *block;
    (void)nbytes, (void)stream; /* the block knows both */
    if (!pool) return;
    block = block_at(pool->live, (uintptr_t)pointer - pool->setup.base);
    if (block) {
        remove_block(&pool->live, block);
        block->is_live = 0;
        pool->stats.free_count++;
        pool->stats.live_nbytes -= block->nbytes;
        if (block->uses || block->is_used_anywhere) {
            block->is_parked = 1;
            block->next_parked = pool->parked;
            pool->parked = block;
        } else {
            put_block(pool, block);
        }
    } else {
        pool->stats.unknown_free_count++;
    }
    leave_pool(pool);
}

static void note_use(Block *block, Stream stream) {
    Use *use = block->uses;
    if (!stream) stream = (Stream)1;
    while (use && use->stream != stream) use = use->next;
    if (use || stream == block->lane->stream) return;
    use = calloc(1, sizeof *use);
    if (!use) {
        block->is_used_anywhere = 1;
        return;
    }
    use->stream = stream;
    use->next = block->uses;
    block->uses = use;
}

MADL_EXPORT void madl_device_record_stream(void *pointer, void *stream) {
    int device;
    for (device = 0; device < MADL_MOST_DEVICES; device++) {
        DevicePool *pool = enter_pool(device);
        Block *block;
        if (!pool) continue;
        block = block_at(pool->live, (uintptr_t)pointer - pool->setup.base);
        if (block) note_use(block, stream);
        leave_pool(pool);
        if (block) return;
    }
}

static uint64_t count_index(const Block *root, uint64_t *largest) {
    uint64_t left, right, found;
    if (!root) return 0;
    found = count_index(root->left, &left) + count_index(root->right, &right) + 1;
    *largest = root->nbytes;
    if (root->left && left > *largest) *largest = left;
    if (root->right && right > *largest) *largest = right;
    return *largest == root->largest ? found : UINT64_MAX / 2;
}

/* What is wrong with a pool, or NULL. */
static const char *wrong_with(DevicePool *pool) {
    uint64_t end = pool->stats.committed_nbytes, live = 0, count = 0, in_lanes = 0;
    uint64_t largest, free_count = 0;
    Block *block;
    Lane *lane;
    for (block = pool->last; block; block = block->before) {
        const Block *before = block->before;
        if (block->offset + block->nbytes != end) return "order of blocks";
        end = block->offset;
        if (block->is_live) live += block->nbytes, count++;
        if (is_free(block)) free_count++;
        if (is_free(block) && is_free(before) && before->lane == block->lane)
            return "joined neighbours";
    }
    if (end) return "first block";
    if (live != pool->stats.live_nbytes) return "live bytes";
    if (count_index(pool->live, &largest) != count) return "index of live blocks";
    for (lane = pool->lanes; lane; lane = lane->next)
        in_lanes += count_index(lane->free, &largest);
    return in_lanes == free_count ? NULL : "index of free blocks";
}

/* Put a pool in place for a device; whether there was memory for it. */
static int open_device_pool(int device, const DevicePoolSetup *setup) {
    static int is_watching;
    DevicePool *pool;
    if (!is_watching && watch_forks()) return 0;
    is_watching = 1;
    pool = calloc(1, sizeof *pool);
    if (!pool) return 0;
    pool->setup = *setup;
    pool->seed = 0x2545F491;
    pool->lock = PyThread_allocate_lock();
    if (!pool->lock) {
        free(pool);
        return 0;
    }
    device_pools[device] = pool;
    return 1;
}

#endif
