/* The calls on streams: making, waiting, asking, and capturing a graph. */
#define _GNU_SOURCE
#include "queues.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };
static __thread int mode;

Status refuse_in_capture(const char *name)
{
    if (mode == RELAXED)
        return OK;
    for (Stream *stream = streams; stream; stream = stream->next)
        if (stream->capture && stream->capture_mode == GLOBAL) {
            stream->capture = 2;
            return misuse(CAPTURE_UNSUPPORTED, "%s breaks a capture", name);
        }
    return OK;
}

MAKE(cuStreamCreateWithPriority, (Stream **stream, unsigned flags, int priority),
     (stream, flags, priority))
{
    NEED(context);
    *stream = add_stream(context, flags, priority);
    counts[STREAMS]++;
    return OK;
}

MAKE(cuStreamCreate, (Stream **stream, unsigned flags), (stream, flags))
{
    NEED(context);
    *stream = add_stream(context, flags, 0);
    counts[STREAMS]++;
    return OK;
}

CALL(cuStreamDestroy_v2, (void *handle), (handle))
{
    NEED(context);
    Stream *stream;
    Status status = (uintptr_t)handle <= 2 ? INVALID_HANDLE
                                           : find_stream(context, handle, &stream);
    if (status != OK)
        return status;
    finish_queue(stream);
    stream->is_alive = 0;
    counts[STREAMS]--;
    return OK;
}

CALL(cuStreamSynchronize, (void *handle), (handle))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status != OK)
        return status;
    if (stream->capture)
        return CAPTURE_UNSUPPORTED;
    if (stream == context->legacy)
        finish_device(context->device);
    finish_queue(stream);
    return context->broken;
}

CALL(cuCtxSynchronize, (void), ())
{
    NEED(context);
    finish_device(context->device);
    return context->broken;
}

CALL(cuCtxSynchronize_v2, (Context *context), (context))
{
    finish_device(context->device);
    return context->broken;
}

CALL(cuStreamQuery, (void *handle), (handle))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    return status == OK && stream->first ? NOT_READY : status;
}

CALL(cuStreamGetCtx, (void *handle, Context **found), (handle, found))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK)
        *found = stream->context;
    return status;
}

CALL(cuStreamGetDevice, (void *handle, int *device), (handle, device))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK)
        *device = stream->context->device;
    return status;
}

CALL(cuStreamGetFlags, (void *handle, unsigned *flags), (handle, flags))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK)
        *flags = stream->flags;
    return status;
}

CALL(cuStreamGetPriority, (void *handle, int *priority), (handle, priority))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK)
        *priority = stream->priority;
    return status;
}

CALL(cuStreamIsCapturing, (void *handle, int *is_capturing), (handle, is_capturing))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK && waits_for_capture(stream))
        return CAPTURE_IMPLICIT; /* and the capture goes on */
    if (status == OK)
        *is_capturing = stream->capture;
    return status;
}

CALL(cuStreamBeginCapture_v2, (void *handle, int how), (handle, how))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK) {
        stream->capture = 1;
        stream->capture_mode = how;
    }
    return status;
}

CALL(cuStreamEndCapture, (void *handle, void **graph), (handle, graph))
{
    NEED(context);
    Stream *stream;
    Status status = find_stream(context, handle, &stream);
    if (status == OK) {
        status = stream->capture == 2 ? CAPTURE_INVALIDATED : OK;
        stream->capture = 0;
        *graph = NULL;
    }
    return status;
}

CALL(cuThreadExchangeStreamCaptureMode, (int *how), (how))
{
    int before = mode;
    mode = *how;
    *how = before;
    return OK;
}
