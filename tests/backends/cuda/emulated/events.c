/* Positions in queues. A destroyed event stays, dead, so that its use is seen. */
#define _GNU_SOURCE
#include "queues.h"
#include <stdlib.h>

static Event *events;

static Status find_event(void *handle, Event **found)
{
    for (Event *event = events; event; event = event->next)
        if (event == handle && event->is_alive) {
            *found = event;
            return OK;
        }
    return misuse(INVALID_HANDLE, "an event that is none, or none any more");
}

MAKE(cuEventCreate, (Event **event, unsigned flags), (event, flags))
{
    (void)flags;
    NEED(context);
    Event *one = calloc(1, sizeof *one);
    *one = (Event){context, NULL, 0, 0, 1, 0, events};
    events = one;
    counts[EVENTS]++;
    *event = one;
    return OK;
}

CALL(cuEventDestroy_v2, (void *handle), (handle))
{
    Event *event;
    Status status = find_event(handle, &event);
    if (status == OK) {
        event->is_alive = 0;
        counts[EVENTS]--;
    }
    return status;
}

CALL(cuEventRecord, (void *handle, void *stream), (handle, stream))
{
    NEED(context);
    Event *event;
    Status status = find_event(handle, &event);
    if (status != OK)
        return status;
    if (event->context != context)
        return misuse(INVALID_HANDLE, "an event of another context");
    status = find_stream(context, stream, &event->stream);
    event->is_captured = status == OK && event->stream->capture;
    if (status == OK)
        status = queue_work(context, stream, (Work){.kind = RECORD, .event = event},
                     &event->recorded);
    return status;
}

CALL(cuEventQuery, (void *handle), (handle))
{
    NEED(context);
    UNSAFE_IN_CAPTURE("cuEventQuery");
    Event *event;
    Status status = find_event(handle, &event);
    if (status == OK && event->is_captured)
        return misuse(907, "cuEventQuery of an event that was captured");
    return status == OK && event->done < event->recorded ? NOT_READY : status;
}

CALL(cuEventSynchronize, (void *handle), (handle))
{
    NEED(context);
    Event *event;
    Status status = find_event(handle, &event);
    if (status == OK && event->done < event->recorded)
        run_queue(event->stream, event->recorded);
    return status == OK ? context->broken : status;
}

CALL(cuEventElapsedTime_v2, (float *ms, void *start, void *stop), (ms, start, stop))
{
    (void)start, (void)stop;
    *ms = 0;
    return OK;
}

CALL(cuStreamWaitEvent, (void *stream, void *handle, unsigned flags),
     (stream, handle, flags))
{
    (void)flags;
    NEED(context);
    Event *event;
    Status status = find_event(handle, &event);
    if (status != OK)
        return status;
    Work work = {.kind = WAIT, .other = event->stream, .other_number = event->recorded};
    return event->stream ? queue_work(context, stream, work, NULL) : OK;
}
