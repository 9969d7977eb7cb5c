/* A lock around instructions that never wait, raise, or call Python or the system.
 *
 * So waiting means spinning, then yielding the processor, in case the holder was
 * preempted, and then sleeping: a yield never lets a thread of lower priority run, and a
 * holder that has one would starve. */
#ifndef MADL_GUARD_H
#define MADL_GUARD_H

#if defined(_WIN32)
#define MADL_CANNOT_FORK
#include <windows.h>
static inline void madl_yield(void) { SwitchToThread(); }
static inline void madl_sleep(void) { Sleep(1); }
#else
#include <pthread.h>
#include <sched.h>
#include <time.h>
static inline void madl_yield(void) { sched_yield(); }
static inline void madl_sleep(void) {
    struct timespec a_moment = {0, 50000};
    nanosleep(&a_moment, NULL);
}
#endif

enum { MADL_SPINS = 200, MADL_YIELDS = 20 };

#if defined(_MSC_VER)
#include <intrin.h>
typedef volatile long madl_guard;
static inline int madl_try(madl_guard *guard) { return !_InterlockedExchange(guard, 1); }
static inline void madl_leave(madl_guard *guard) { _InterlockedExchange(guard, 0); }
#else
typedef volatile int madl_guard;
static inline int madl_try(madl_guard *guard) {
    return !__atomic_exchange_n(guard, 1, __ATOMIC_ACQUIRE);
}
static inline void madl_leave(madl_guard *guard) {
    __atomic_store_n(guard, 0, __ATOMIC_RELEASE);
}
#endif

/* Wait a moment, longer the more often one has waited. */
static inline void madl_wait(int *turns) {
    if (++*turns <= MADL_YIELDS)
        madl_yield();
    else
        madl_sleep();
}

static inline void madl_enter(madl_guard *guard) {
    int spins = 0, turns = 0;
    while (!madl_try(guard)) {
        do {
            if (++spins > MADL_SPINS) { madl_wait(&turns); spins = 0; }
        } while (*guard);
    }
}

/* Calls something right before and after every fork of the process. */
static inline int madl_at_fork(
    void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
#ifdef MADL_CANNOT_FORK
    (void)before, (void)in_parent, (void)in_child;
    return 0;
#else
    return pthread_atfork(before, in_parent, in_child);
#endif
}

/* Where there is no interpreter lock, every pool is guarded. */
#ifdef Py_GIL_DISABLED
#define MADL_HAS_INTERPRETER_LOCK 0
#else
#define MADL_HAS_INTERPRETER_LOCK 1
#endif

#endif
