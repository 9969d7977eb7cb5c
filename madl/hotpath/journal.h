/* A journal: records of 16 bytes in a file, of which the latest lie in a ring that is
 * mapped into memory, so that they stay when the process is killed. A full ring is
 * appended to the file. The format is in docs/explanation/trace-format.md.
 *
 * The ring is written with zeros before it is mapped: a full disk is then an error
 * here, not a signal at some later store. */
#ifndef MADL_JOURNAL_H
#define MADL_JOURNAL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "guard.h"

#if defined(_WIN32)
#define MADL_HAS_JOURNAL 0
#else
#define MADL_HAS_JOURNAL 1
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

enum { MADL_MAPPED = 1 << 18, MADL_HEAD = 64, MADL_RING = MADL_MAPPED - MADL_HEAD };
enum { MADL_ALLOCATE = 1, MADL_FREE = 2, MADL_CONTEXT = 3 };
/* Words of the head. Two of magic text come before. */
enum { MADL_ORDER = 2, MADL_RING_NBYTES = 3, MADL_END = 4 };

typedef struct madl_journal {
    uint64_t *head; /* of the mapping; NULL before it is opened */
    uint64_t *next; /* where the next record goes */
    uint64_t *stop; /* of the ring */
    uint64_t end;   /* bytes of all records so far */
    int file;
    int error; /* the errno that ended it */
    int is_guarded;
    madl_guard guard;
    struct madl_journal *older; /* that is active too */
} madl_journal;

#if MADL_HAS_JOURNAL
static inline int madl_write_all(int file, const char *from, size_t nbytes, off_t at) {
    while (nbytes) {
        ssize_t count = pwrite(file, from, nbytes, at);
        if (count > 0) {
            from += count, at += count, nbytes -= (size_t)count;
        } else if (count == 0 || errno != EINTR) {
            return count ? errno : ENOSPC;
        }
    }
    return 0;
}
#endif

static inline void madl_journal_open(madl_journal *journal, int file) {
#if MADL_HAS_JOURNAL
    char *zeros = (char *)calloc(1, MADL_MAPPED);
    void *mapped;
    journal->file = file;
    journal->error = zeros ? madl_write_all(file, zeros, MADL_MAPPED, 0) : ENOMEM;
    free(zeros);
    if (journal->error) return;
    mapped = mmap(NULL, MADL_MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        journal->error = errno;
        return;
    }
    journal->head = (uint64_t *)mapped;
    journal->next = journal->head + MADL_HEAD / sizeof(uint64_t);
    journal->stop = journal->head + MADL_MAPPED / sizeof(uint64_t);
    memcpy(journal->head, "madl-journal v1\n", 16);
    journal->head[MADL_ORDER] = 0x0102030405060708ULL;
    journal->head[MADL_RING_NBYTES] = MADL_RING;
#else
    (void)file;
    journal->error = 1;
#endif
}

static inline void madl_journal_close(madl_journal *journal) {
#if MADL_HAS_JOURNAL
    if (journal->head) munmap(journal->head, MADL_MAPPED);
#endif
    journal->head = journal->next = journal->stop = NULL;
}

/* Append the full ring to the file. After an error nothing is written any more. */
static inline void madl_journal_flush(madl_journal *journal) {
#if MADL_HAS_JOURNAL
    uint64_t *ring;
    if (journal->error || !journal->head) return;
    ring = journal->head + MADL_HEAD / sizeof(uint64_t);
    journal->error = madl_write_all(
        journal->file, (const char *)ring, MADL_RING,
        (off_t)(MADL_MAPPED + journal->end - MADL_RING));
    if (!journal->error) journal->next = ring;
#else
    (void)journal;
#endif
}

static inline void madl_journal_put(
    madl_journal *journal, uint64_t value, uint64_t key_and_kind) {
    if (journal->next == journal->stop) {
        madl_journal_flush(journal);
        if (journal->next == journal->stop) return;
    }
    ((volatile uint64_t *)journal->next)[0] = value;
    ((volatile uint64_t *)journal->next)[1] = key_and_kind;
    journal->next += 2;
    journal->end += 16;
    /* last: what it does not count does not exist */
    ((volatile uint64_t *)journal->head)[MADL_END] = journal->end;
}

static inline void madl_journal_enter(madl_journal *journal) {
    if (journal->is_guarded) madl_enter(&journal->guard);
}

static inline void madl_journal_leave(madl_journal *journal) {
    if (journal->is_guarded) madl_leave(&journal->guard);
}

static inline uint64_t madl_journal_key(const void *block) {
    return (uint64_t)(uintptr_t)block << 4;
}

/* Note an allocation in all active journals. The numbers of its stream and its tag
 * are 0 for most; else they come in a record before. */
static inline void madl_note_allocated(
    madl_journal *journal, const void *block, uint64_t nbytes, uint64_t stream,
    uint64_t tag) {
    for (; journal; journal = journal->older) {
        madl_journal_enter(journal);
        if (stream | tag) madl_journal_put(journal, stream, tag << 4 | MADL_CONTEXT);
        madl_journal_put(journal, nbytes, madl_journal_key(block) | MADL_ALLOCATE);
        madl_journal_leave(journal);
    }
}

static inline void madl_note_freed(madl_journal *journal, const void *block) {
    for (; journal; journal = journal->older) {
        madl_journal_enter(journal);
        madl_journal_put(journal, 0, madl_journal_key(block) | MADL_FREE);
        madl_journal_leave(journal);
    }
}

#endif
