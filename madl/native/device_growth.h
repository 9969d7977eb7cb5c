/* How a device pool grows, shrinks, and orders one stream behind another. */
#ifndef MADL_DEVICE_GROWTH_H
#define MADL_DEVICE_GROWTH_H

#include "device_pool.h"

static int failed(DevicePool *pool, int status) {
    if (status) pool->stats.last_status = status;
    return status;
}

/* Have the device's context current, in the mode that breaks no capture of a graph. */
static int enter_device(DevicePool *pool, int *mode) {
    const DriverCalls *calls = &pool->setup.calls;
    void *context;
    *mode = MADL_RELAXED;
    if (failed(pool, calls->enter(pool->setup.context))) return 0;
    if (!failed(pool, calls->exchange_capture_mode(mode))) return 1;
    calls->leave(&context);
    return 0;
}

static void leave_device(DevicePool *pool, int *mode) {
    void *context;
    pool->setup.calls.exchange_capture_mode(mode);
    pool->setup.calls.leave(&context);
}

static int commit_segment(DevicePool *pool, Address at, uint64_t nbytes,
                          Address *handle) {
    const DriverCalls *calls = &pool->setup.calls;
    if (failed(pool, calls->create(handle, nbytes, pool->setup.properties, 0)))
        return 0;
    if (!failed(pool, calls->map(at, nbytes, 0, *handle, 0))) {
        if (!failed(pool, calls->allow(at, nbytes, pool->setup.access, 1))) return 1;
        calls->unmap(at, nbytes);
    }
    calls->release(*handle);
    return 0;
}

static int has_room_for_segment(DevicePool *pool) {
    size_t room = pool->segment_room ? 2 * pool->segment_room : 64;
    Segment *segments;
    if (pool->segment_count < pool->segment_room) return 1;
    segments = realloc(pool->segments, room * sizeof *segments);
    if (!segments) return 0;
    pool->segments = segments;
    pool->segment_room = room;
    return 1;
}

/* Commit what a lane lacks for a block of some bytes at the end; whether it could. */
static int grow_pool(DevicePool *pool, Lane *lane, uint64_t nbytes) {
    Block *last = pool->last, *block;
    uint64_t had = is_free(last) && last->lane == lane ? last->nbytes : 0;
    uint64_t wanted = up_to(nbytes - had, pool->setup.page_nbytes);
    uint64_t committed = pool->stats.committed_nbytes;
    Address handle;
    int mode, is_committed;
    if (wanted > pool->setup.limit_nbytes - committed || !has_room_for_segment(pool)
        || !(block = new_block(pool, last, NULL, lane)))
        return 0;
    block->is_parked = 1; /* nothing is joined with it before it is committed */
    if (!enter_device(pool, &mode)) {
        drop_block(pool, block);
        return 0;
    }
    is_committed = commit_segment(pool, pool->setup.base + committed, wanted, &handle);
    leave_device(pool, &mode);
    if (!is_committed) {
        drop_block(pool, block);
        return 0;
    }
    pool->segments[pool->segment_count++] = (Segment){handle, wanted};
    pool->stats.committed_nbytes += wanted;
    if (pool->stats.committed_nbytes > pool->stats.committed_high_water)
        pool->stats.committed_high_water = pool->stats.committed_nbytes;
    block->offset = committed;
    block->nbytes = wanted;
    block->is_parked = 0;
    put_block(pool, block);
    return 1;
}

/* Let a stream wait, on the device, for what another one has queued; whether it may:
 * in a capture it would tie two graphs together. The context is current. */
static int follow_stream(DevicePool *pool, Stream stream, Stream other) {
    const DriverCalls *calls = &pool->setup.calls;
    int state = 0, other_state = 0;
    return !failed(pool, calls->is_capturing(stream, &state))
        && !failed(pool, calls->is_capturing(other, &other_state)) && !state
        && !other_state && !failed(pool, calls->record(pool->setup.event, other))
        && !failed(pool, calls->wait(stream, pool->setup.event, 0));
}

/* Whether all that is queued on the device is done. It waits; not in a capture of a
 * graph, which that would end. */
static int wait_for_device(DevicePool *pool) {
    const DriverCalls *calls = &pool->setup.calls;
    const Lane *lane;
    for (lane = pool->lanes; lane; lane = lane->next) {
        int state = 0;
        if (failed(pool, calls->is_capturing(lane->stream, &state)) || state) return 0;
    }
    return !failed(pool, calls->synchronize());
}

/* Order parked blocks behind their uses, so that their lanes have them again. */
static int settle_parked(DevicePool *pool) {
    Block **link = &pool->parked;
    int mode, settled = 0;
    if (!*link || !enter_device(pool, &mode)) return 0;
    while (*link) {
        Block *block = *link;
        if (block->is_used_anywhere && wait_for_device(pool))
            block->is_used_anywhere = 0;
        while (block->uses
               && follow_stream(pool, block->lane->stream, block->uses->stream)) {
            Use *use = block->uses;
            block->uses = use->next;
            free(use);
        }
        if (block->uses || block->is_used_anywhere) {
            link = &block->next_parked;
            continue;
        }
        *link = block->next_parked;
        block->is_parked = 0;
        put_block(pool, block);
        settled++;
    }
    leave_device(pool, &mode);
    return settled;
}

/* Give a lane what another one has free; how many blocks that were. */
static int move_free(DevicePool *pool, Lane *from, Lane *to) {
    int moved = 0;
    while (from->free) {
        Block *block = from->free;
        remove_block(&from->free, block);
        block->lane = to;
        put_block(pool, block);
        moved++;
    }
    return moved;
}

/* Take over what other lanes have free, behind what their streams have queued. */
static int take_over(DevicePool *pool, Lane *lane) {
    Lane *other;
    int mode, taken = 0;
    if (!enter_device(pool, &mode)) return 0;
    for (other = pool->lanes; other; other = other->next) {
        if (other == lane || !other->free
            || !follow_stream(pool, lane->stream, other->stream))
            continue;
        taken += move_free(pool, other, lane);
    }
    leave_device(pool, &mode);
    return taken;
}

static Block *place_block(DevicePool *pool, Lane *lane, uint64_t nbytes) {
    Block *block = take_block(pool, lane, nbytes);
    if (block) return block;
    if (settle_parked(pool) && (block = take_block(pool, lane, nbytes))) return block;
    if (grow_pool(pool, lane, nbytes)) return take_block(pool, lane, nbytes);
    if (!take_over(pool, lane)) return NULL;
    if ((block = take_block(pool, lane, nbytes))) return block;
    return grow_pool(pool, lane, nbytes) ? take_block(pool, lane, nbytes) : NULL;
}

/* Give back the last segment if it lies wholly in the last block, which is free. */
static int release_last_segment(DevicePool *pool) {
    const DriverCalls *calls = &pool->setup.calls;
    Segment segment = pool->segments[pool->segment_count - 1];
    uint64_t end = pool->stats.committed_nbytes - segment.nbytes;
    Block *last = pool->last;
    if (last->nbytes < segment.nbytes
        || failed(pool, calls->unmap(pool->setup.base + end, segment.nbytes)))
        return 0;
    failed(pool, calls->release(segment.handle));
    pool->segment_count--;
    pool->stats.committed_nbytes = end;
    remove_block(&last->lane->free, last);
    if (last->nbytes > segment.nbytes) {
        last->nbytes -= segment.nbytes;
        insert_block(&last->lane->free, last);
    } else {
        drop_block(pool, last);
    }
    return 1;
}

/* Give back the segments at the end that lie wholly in a free block. Waits. */
static uint64_t trim_pool(DevicePool *pool) {
    const DriverCalls *calls = &pool->setup.calls;
    uint64_t before = pool->stats.committed_nbytes;
    Lane *lane;
    int mode;
    settle_parked(pool);
    if (!enter_device(pool, &mode)) return 0;
    if (!failed(pool, calls->synchronize())) {
        /* All streams are done with it, so neighbours of several lanes can be joined. */
        for (lane = pool->lanes; lane; lane = lane->next)
            if (lane != pool->lanes) move_free(pool, lane, pool->lanes);
        while (is_free(pool->last) && release_last_segment(pool)) {}
    }
    leave_device(pool, &mode);
    return before - pool->stats.committed_nbytes;
}

#endif
