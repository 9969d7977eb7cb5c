/* Threads that allocate from C while their starter keeps the interpreter's lock. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

typedef void *(*Malloc)(ptrdiff_t nbytes, int device, void *stream);
typedef void (*Free)(void *pointer, ptrdiff_t nbytes, int device, void *stream);
typedef struct {
    Malloc take;
    Free give;
    void *stream;
    int count, served;
} Work;

static void *work(void *argument)
{
    Work *work = argument;
    void *held[8] = {NULL};
    for (int i = 0; i < work->count + 8; i++) {
        ptrdiff_t nbytes = 1 + i * 7919 % (1 << 20);
        if (held[i % 8])
            work->give(held[i % 8], nbytes, 0, work->stream);
        held[i % 8] = i < work->count ? work->take(nbytes, 0, work->stream) : NULL;
        work->served += held[i % 8] != NULL;
    }
    return NULL;
}

/* Return how many allocations were served. */
int run_threads(Malloc take, Free give, void **streams, int threads, int count)
{
    pthread_t started[16];
    Work works[16];
    int served = 0;
    for (int i = 0; i < threads; i++) {
        works[i] = (Work){take, give, streams[i], count, 0};
        pthread_create(&started[i], NULL, work, &works[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(started[i], NULL);
        served += works[i].served;
    }
    return served;
}

static Free give_last;
static void *last;

static void give(void) { give_last(last, 0, 0, NULL); }

/* Free something as PyTorch does it: when the interpreter is gone. */
void give_at_exit(Free free_function, void *pointer)
{
    give_last = free_function;
    last = pointer;
    atexit(give);
}
