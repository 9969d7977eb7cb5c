/* The calls that copy and fill; streams.c does the work. */
#include "emulated.h"

/* What can be seen wrong when the work is queued; memory may still be in a queue. */
static Status check(Address at, size_t nbytes)
{
    while (nbytes) {
        size_t part = nbytes;
        const Range *range = find_range(at);
        if (!reach(at, &part) && !(range && !range->is_ready))
            return misuse(INVALID_VALUE, "a copy at %#llx, which is not usable", at);
        at += part;
        nbytes -= part;
    }
    return OK;
}

/* What the name of a copy says of its sides: managed memory may be either. */
static Status check_sides(Address device, Address host)
{
    Address start;
    size_t nbytes;
    const Range *of_device = find_range(device), *of_host = find_range(host);
    int is_device = of_device ? of_device->kind != HOST_RANGE
                              : page_device(device, &start, &nbytes) >= 0;
    int is_host = of_host ? of_host->kind != DEVICE_RANGE
                          : page_device(host, &start, &nbytes) < 0;
    if (is_device && is_host)
        return OK;
    return misuse(INVALID_VALUE, "a copy between other sides than its name says");
}

static size_t pageable_nbytes;

/* Bytes of copies in streams from or to memory that the driver did not make: with a
   real one they are not copied by the device itself. */
EXPORT long long emulated_pageable_nbytes(void) { return (long long)pageable_nbytes; }

static void note_pageable(Address host, size_t nbytes)
{
    if (!find_range(host))
        pageable_nbytes += nbytes;
}

static Status copy(Address to, Address from, size_t nbytes, void *stream, int waits)
{
    NEED(context);
    Status status = check(to, nbytes);
    if (status == OK)
        status = check(from, nbytes);
    if (status == OK)
        status = queue_copy(context, stream, to, from, nbytes);
    return status == OK && waits ? finish_stream(context, stream) : status;
}

static Status fill(Address to, unsigned value, unsigned width, size_t count, void *stream)
{
    NEED(context);
    if (to % width)
        return misuse(INVALID_VALUE, "a fill at %#llx", to);
    Status status = check(to, count * width);
    return status == OK ? queue_fill(context, stream, to, value, width, count) : status;
}

CALL(cuMemcpyHtoD_v2, (Address to, const void *from, size_t n), (to, from, n))
{
    Status status = check_sides(to, (Address)from);
    return status == OK ? copy(to, (Address)from, n, 0, 1) : status;
}

CALL(cuMemcpyDtoH_v2, (void *to, Address from, size_t n), (to, from, n))
{
    Status status = check_sides(from, (Address)to);
    return status == OK ? copy((Address)to, from, n, 0, 1) : status;
}

CALL(cuMemcpyDtoD_v2, (Address to, Address from, size_t n), (to, from, n))
{
    return copy(to, from, n, 0, 0);
}

CALL(cuMemcpy, (Address to, Address from, size_t n), (to, from, n))
{
    return copy(to, from, n, 0, 1);
}

CALL(cuMemcpyAsync, (Address to, Address from, size_t n, void *stream),
     (to, from, n, stream))
{
    return copy(to, from, n, stream, 0);
}

CALL(cuMemcpyHtoDAsync_v2, (Address to, const void *from, size_t n, void *stream),
     (to, from, n, stream))
{
    Status status = check_sides(to, (Address)from);
    note_pageable((Address)from, n);
    return status == OK ? copy(to, (Address)from, n, stream, 0) : status;
}

CALL(cuMemcpyDtoHAsync_v2, (void *to, Address from, size_t n, void *stream),
     (to, from, n, stream))
{
    Status status = check_sides(from, (Address)to);
    note_pageable((Address)to, n);
    return status == OK ? copy((Address)to, from, n, stream, 0) : status;
}

CALL(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t n, void *stream),
     (to, from, n, stream))
{
    return copy(to, from, n, stream, 0);
}

CALL(cuMemcpyPeerAsync,
     (Address to, Context *of_to, Address from, Context *of_from, size_t n,
      void *stream),
     (to, of_to, from, of_from, n, stream))
{
    if (!of_to || !of_from)
        return misuse(INVALID_CONTEXT, "cuMemcpyPeerAsync");
    return copy(to, from, n, stream, 0);
}

CALL(cuMemsetD8_v2, (Address to, unsigned char value, size_t n), (to, value, n))
{
    return fill(to, value, 1, n, 0);
}

CALL(cuMemsetD8Async, (Address to, unsigned char value, size_t n, void *stream),
     (to, value, n, stream))
{
    return fill(to, value, 1, n, stream);
}

CALL(cuMemsetD16Async, (Address to, unsigned short value, size_t n, void *stream),
     (to, value, n, stream))
{
    return fill(to, value, 2, n, stream);
}

CALL(cuMemsetD32Async, (Address to, unsigned value, size_t n, void *stream),
     (to, value, n, stream))
{
    return fill(to, value, 4, n, stream);
}
