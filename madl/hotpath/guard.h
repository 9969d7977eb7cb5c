/* A lock around a few dozen instructions that never block, call Python or the system.
 *
 * The holder cannot wait for anything, so waiting means spinning; after a while the
 * processor is yielded, in case the holder was preempted. */
#ifndef MADL_GUARD_H
#define MADL_GUARD_H

#if defined(_WIN32)
#define MADL_CANNOT_FORK
#else
#include <pthread.h>
#endif

#if defined(_MSC_VER)
#include <intrin.h>
#include <windows.h>
typedef volatile long madl_guard;
static inline int madl_try(madl_guard *guard) { return !_InterlockedExchange(guard, 1); }
static inline void madl_leave(madl_guard *guard) { _InterlockedExchange(guard, 0); }
static inline void madl_yield(void) { SwitchToThread(); }
#else
#include <sched.h>
typedef volatile int madl_guard;
static inline int madl_try(madl_guard *guard) {
    return !__atomic_exchange_n(guard, 1, __ATOMIC_ACQUIRE);
}
static inline void madl_leave(madl_guard *guard) {
    __atomic_store_n(guard, 0, __ATOMIC_RELEASE);
}
static inline void madl_yield(void) { sched_yield(); }
#endif

static inline void madl_enter(madl_guard *guard) {
    int spins = 0;
    while (!madl_try(guard)) {
        do {
            if (++spins > 200) { madl_yield(); spins = 0; }
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
