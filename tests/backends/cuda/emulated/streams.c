/* Queues of work: copies, fills, events, waits; done now, or when somebody waits. */
#define _GNU_SOURCE
#include "queues.h"
#include <stdlib.h>
#include <string.h>

Stream *streams;
static uint64_t number; /* of the work queued last; its dependencies have lower ones */

Stream *add_stream(Context *context, unsigned flags, int priority)
{
    Stream *stream = calloc(1, sizeof *stream);
    *stream = (Stream){context, flags, priority, 1, 0, 0, NULL, NULL, streams};
    streams = stream;
    return stream;
}

/* 0 and 1 are the legacy default stream, 2 is the thread's default. */
Status find_stream(Context *context, void *handle, Stream **found)
{
    if ((uintptr_t)handle <= 2) {
        Stream **one = (uintptr_t)handle == 2 ? &context->per_thread : &context->legacy;
        if (!*one)
            *one = add_stream(context, 0, 0);
        *found = *one;
        return OK;
    }
    for (Stream *stream = streams; stream; stream = stream->next)
        if (stream == handle && stream->is_alive) {
            *found = stream;
            return OK;
        }
    return misuse(INVALID_HANDLE, "a stream that is none, or none any more");
}

/* Whether a stream is the legacy one, and one that waits for it is captured. */
Stream *waits_for_capture(Stream *stream)
{
    if (stream != stream->context->legacy)
        return NULL;
    for (Stream *one = streams; one; one = one->next)
        if (one->context == stream->context && one->capture && !(one->flags & 1))
            return one;
    return NULL;
}

static int fill(Work *work)
{
    Address at = work->to;
    for (size_t left = work->nbytes; left;) {
        size_t part = left;
        char *here = reach(at, &part);
        if (!here)
            return 0;
        if (work->width == 1)
            memset(here, (int)work->value, part);
        for (size_t i = 0; work->width > 1 && i < part; i += work->width)
            memcpy(here + i, &work->value, work->width);
        at += part;
        left -= part;
    }
    return 1;
}

static int copy(Work *work)
{
    Address to = work->to, from = work->from;
    for (size_t left = work->nbytes; left;) {
        size_t part = left;
        char *source = reach(from, &part);
        char *target = reach(to, &part);
        if (!source || !target)
            return 0;
        memmove(target, source, part);
        to += part;
        from += part;
        left -= part;
    }
    return 1;
}

static void perform(Stream *stream, Work *work)
{
    int is_fine = 1;
    switch (work->kind) {
    case COPY: is_fine = copy(work); break;
    case FILL: is_fine = fill(work); break;
    case RECORD: work->event->done = work->number; break;
    case WAIT: break;
    case READY: work->range->is_ready = 1; break;
    case FREE: is_fine = free_range(work->to, 0) == OK; break;
    }
    if (!is_fine) {
        stream->context->broken = ILLEGAL_ADDRESS;
        misuse(ILLEGAL_ADDRESS, "work at %#llx, which is not usable", work->to);
    }
}

/* Work depends on lower numbers only, so this ends. */
void run_queue(Stream *stream, uint64_t upto)
{
    Context *context = stream->context;
    while (stream->first && stream->first->number <= upto) {
        Work *work = stream->first;
        stream->first = work->next;
        if (!stream->first)
            stream->last = NULL;
        if (stream == context->legacy) {
            for (Stream *one = streams; one; one = one->next)
                if (one != stream && one->context == context && !(one->flags & 1))
                    run_queue(one, work->number);
        } else if (!(stream->flags & 1) && context->legacy)
            run_queue(context->legacy, work->number);
        if (work->kind == WAIT)
            run_queue(work->other, work->other_number);
        perform(stream, work);
        free(work);
    }
}

/* A stream waits for the legacy one even when it has no work itself. */
void finish_queue(Stream *stream)
{
    if (!(stream->flags & 1) && stream->context->legacy)
        run_queue(stream->context->legacy, number);
    run_queue(stream, number);
}

void finish_device(int device)
{
    for (Stream *stream = streams; stream; stream = stream->next)
        if (stream->context->device == device)
            run_queue(stream, number);
}

Status queue_work(Context *context, void *handle, Work work, uint64_t *added)
{
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status != OK)
        return status;
    if (stream->context != context)
        return misuse(INVALID_HANDLE, "a stream of another context");
    if (stream->capture)
        return stream->capture == 1 ? OK : CAPTURE_INVALIDATED; /* goes into a graph */
    Stream *captured = waits_for_capture(stream);
    if (captured) {
        captured->capture = 2;
        return misuse(CAPTURE_IMPLICIT, "work of the legacy stream in a capture");
    }
    Work *one = malloc(sizeof *one);
    *one = work;
    one->number = ++number;
    one->next = NULL;
    if (added)
        *added = one->number;
    if (stream->last)
        stream->last->next = one;
    else
        stream->first = one;
    stream->last = one;
    if (!settings[LAZY])
        run_queue(stream, number);
    return settings[LAZY] ? OK : context->broken;
}

Status queue_copy(Context *context, void *stream, Address to, Address from, size_t n)
{
    Work work = {.kind = COPY, .to = to, .from = from, .nbytes = n};
    return queue_work(context, stream, work, NULL);
}

Status queue_fill(Context *context, void *stream, Address to, unsigned value,
                  unsigned width, size_t count)
{
    Work work = {.kind = FILL, .to = to, .nbytes = count * width, .value = value,
                 .width = width};
    return queue_work(context, stream, work, NULL);
}

Status queue_free(Context *context, void *stream, Address at)
{
    return queue_work(context, stream, (Work){.kind = FREE, .to = at}, NULL);
}

Status queue_ready(Context *context, void *stream, Range *range)
{
    range->is_ready = 0;
    return queue_work(context, stream, (Work){.kind = READY, .range = range}, NULL);
}

Status finish_stream(Context *context, void *handle)
{
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK)
        finish_queue(stream);
    return status == OK ? context->broken : status;
}

/* What a test may do: let all queued work be done. */
EXPORT void emulated_run(void)
{
    for (int device = 0; device < MOST_DEVICES; device++)
        finish_device(device);
}
