/* Work, and the queues it waits in. */
#ifndef QUEUES_H
#define QUEUES_H
#include "emulated.h"

typedef struct Event {
    Context *context;
    Stream *stream;
    uint64_t recorded, done; /* numbers of records; equal when it is reached */
    int is_alive, is_captured;
    struct Event *next;
} Event;
typedef struct Work {
    uint64_t number;
    enum { COPY, FILL, RECORD, WAIT, READY, FREE } kind;
    Address to, from;
    size_t nbytes;
    unsigned value, width;
    Event *event;
    Stream *other;
    uint64_t other_number;
    Range *range;
    struct Work *next;
} Work;
struct Stream {
    Context *context;
    unsigned flags; /* 1: does not wait for the legacy stream */
    int priority, is_alive, capture; /* 1 capturing, 2 broken */
    int capture_mode;
    Work *first, *last;
    Stream *next;
};

extern Stream *streams;
Stream *add_stream(Context *context, unsigned flags, int priority);
void finish_queue(Stream *stream);
Stream *waits_for_capture(Stream *stream);
void run_queue(Stream *stream, uint64_t upto);
Status queue_work(Context *context, void *handle, Work work, uint64_t *added);
#endif
