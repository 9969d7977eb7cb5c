/* An emulated CUDA driver: host memory that only the driver's own calls reach.

   It is strict: it knows every address, handle, stream and event it gave out, takes
   note of each misuse, and fails calls on request. A device address is never readable
   on the host. With lazy=1 queued work runs only when somebody waits for it.

   EMULATED_CUDA="devices=2,memory=1073741824" sets what the machine is like: devices,
   memory and addresses (bytes of each device), host (bytes that can be pinned),
   version (12040 for CUDA 12.4), pages, pools, managed, concurrent, lazy (0 or 1);
   report=1 says on stderr at the end what was left and misused. */
#ifndef EMULATED_H
#define EMULATED_H
#include <stddef.h>
#include <stdint.h>

typedef int Status;
typedef unsigned long long Address;
enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3,
    DEINITIALIZED = 4, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906
};
enum { MOST_DEVICES = 8, GRANULE = 2 << 20 };
#define EXPORT __attribute__((visibility("default")))

/* Define a driver call: counted, failed on request, one at a time. */
#define DEFINE(name, makes, parameters, arguments)                          \
    static Status do_##name parameters;                                     \
    EXPORT Status name parameters                                           \
    {                                                                       \
        Status status = begin(#name, makes);                                \
        return status == OK ? end(#name, do_##name arguments) : status;     \
    }                                                                       \
    static Status do_##name parameters
#define CALL(name, parameters, arguments) DEFINE(name, 0, parameters, arguments)
/* One that hands something out: when it fails, it has handed out nothing. */
#define MAKE(name, parameters, arguments) DEFINE(name, 1, parameters, arguments)

/* control.c */
enum Setting {
    DEVICES, MEMORY, ADDRESSES, HOST, VERSION, PAGES, POOLS, MANAGED, CONCURRENT,
    LAZY, REPORT, SETTINGS
};
enum Count {
    ALLOCATIONS, HANDLES, MAPPINGS, RESERVATIONS, STREAMS, EVENTS, HOST_BLOCKS,
    DEVICE_NBYTES, ADDRESS_NBYTES, HOST_NBYTES, COUNTS
};
extern long long settings[SETTINGS];
extern long long counts[COUNTS];
Status begin(const char *name, int makes);
Status end(const char *name, Status status);
Status misuse(Status status, const char *format, ...);

/* contexts.c */
typedef struct Stream Stream;
typedef struct {
    int device, retained;
    Status broken; /* what every call answers after an illegal access */
    Stream *legacy, *per_thread;
    long long taken_nbytes;
} Context;
extern Context contexts[MOST_DEVICES];
Status current_context(Context **found);
#define NEED(context)                                                       \
    Context *context = NULL;                                                \
    do {                                                                    \
        Status needed = current_context(&context);                          \
        if (needed != OK)                                                   \
            return needed;                                                  \
    } while (0)
Status take_device_memory(int device, size_t nbytes);
void give_device_memory(int device, size_t nbytes);

/* memory.c: what lies at an address, and where the emulation keeps it */
typedef struct Range {
    Address at;
    size_t nbytes;
    int kind, device, is_ready; /* not ready: queued, and the queue is not there yet */
    char *shadow;
    struct Range *next;
} Range;
enum { DEVICE_RANGE, HOST_RANGE, MANAGED_RANGE };
void *new_memory(size_t nbytes);
char *reach(Address at, size_t *nbytes);
Status free_range(Address at, int is_host);
Range *find_range(Address at);

/* pages.c */
char *reach_page(Address at, size_t *nbytes, int *is_reserved);
int page_device(Address at, Address *start, size_t *nbytes);

/* streams.c */
Status find_stream(Context *context, void *handle, Stream **found);
Status queue_copy(Context *context, void *stream, Address to, Address from, size_t n);
Status queue_fill(Context *, void *stream, Address to, unsigned value, unsigned width,
                  size_t count);
Status finish_stream(Context *context, void *stream);
Status queue_free(Context *context, void *stream, Address at);
Status queue_ready(Context *context, void *stream, Range *range);
void finish_device(int device);
Status refuse_in_capture(const char *name);
#define UNSAFE_IN_CAPTURE(name)                                             \
    do {                                                                    \
        Status refused = refuse_in_capture(name);                           \
        if (refused != OK)                                                  \
            return refused;                                                 \
    } while (0)
#endif
