/* A journal: records of 16 bytes in a file, of which the latest lie in a ring that is
 * mapped into memory, so that they stay when the process is killed. A full ring is
 * appended to the file. The format is in docs/explanation/trace-format.md.
 *
 * Pools put records under their guards, where a file may not be written: a write takes
 * long, and may wait for ever. So what finds the ring full leaves all guards, has it
 * appended, and starts again.
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
    int is_busy; /* one thread writes to the file, or many records; others wait */
    int pins;    /* threads that are about to: it has to stay */
    madl_guard guard;
    struct madl_journal *older;  /* that is active too */
    struct madl_journal *linked; /* what that is to be; no other thread looks at it */
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

static inline void madl_journal_enter(madl_journal *journal) {
    if (journal->is_guarded) madl_enter(&journal->guard);
}

static inline void madl_journal_leave(madl_journal *journal) {
    if (journal->is_guarded) madl_leave(&journal->guard);
}

/* Whether so many records can be put under the guard, where no file may be written. An
 * error is room enough: then nothing is put. */
static inline int madl_journal_has_room(const madl_journal *journal, int count) {
    return !journal->is_busy
        && (journal->error || !journal->head || journal->stop - journal->next >= 2 * count);
}

/* Put a record where there is room for it; the guard is held. */
static inline void madl_journal_put(
    madl_journal *journal, uint64_t value, uint64_t key_and_kind) {
    if (journal->next == journal->stop) return; /* after an error */
    ((volatile uint64_t *)journal->next)[0] = value;
    ((volatile uint64_t *)journal->next)[1] = key_and_kind;
    journal->next += 2;
    journal->end += 16;
    /* last: what it does not count does not exist */
    ((volatile uint64_t *)journal->head)[MADL_END] = journal->end;
}

/* Be the one that writes to the file; others wait, in no guard. */
static inline void madl_journal_claim(madl_journal *journal) {
    int turns = 0;
    madl_journal_enter(journal);
    while (journal->is_busy) {
        madl_journal_leave(journal);
        madl_wait(&turns);
        madl_journal_enter(journal);
    }
    journal->is_busy = 1;
    madl_journal_leave(journal);
}

static inline void madl_journal_yield(madl_journal *journal) {
    madl_journal_enter(journal);
    journal->is_busy = 0;
    madl_journal_leave(journal);
}

/* Append the ring, which is full, to the file; the journal is claimed. After an error
 * nothing is written any more. */
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

/* Put whole records, with none of others between them; in no guard. */
static inline void madl_journal_put_all(
    madl_journal *journal, const char *records, size_t count) {
    uint64_t words[2];
    madl_journal_claim(journal);
    for (; count; count--, records += 16) {
        if (journal->next == journal->stop) madl_journal_flush(journal);
        memcpy(words, records, 16);
        madl_journal_put(journal, words[0], words[1]);
    }
    madl_journal_yield(journal);
}

/* Make room for so many records; in no guard. Records are appended to the file a full
 * ring at a time, so what is too little is filled with a context that says nothing. */
static inline void madl_journal_make_room(madl_journal *journal, int count) {
    madl_journal_claim(journal);
    if (!journal->error && journal->head && journal->stop - journal->next < 2 * count) {
        while (journal->next != journal->stop) madl_journal_put(journal, 0, MADL_CONTEXT);
        madl_journal_flush(journal);
    }
    madl_journal_yield(journal);
}

/* A record of an allocation or a free, and what comes before it. */
typedef struct {
    uint64_t nbytes, stream, tag, key_and_kind;
} madl_note;

static inline madl_note madl_note_of(const void *block, int kind) {
    madl_note note = {0, 0, 0, 0};
    note.key_and_kind = (uint64_t)(uintptr_t)block << 4 | (uint64_t)kind;
    return note;
}

/* Note it in all of a chain of journals, or in none and return the first that has no
 * room; that one is pinned. The numbers of stream and tag are 0 for most allocations;
 * else they come in a record before. */
static inline madl_journal *madl_put_note(madl_journal *newest, madl_note note) {
    int count = note.stream | note.tag ? 2 : 1;
    madl_journal *journal, *full = NULL;
    for (journal = newest; journal; journal = journal->older) {
        madl_journal_enter(journal);
        if (!full && !madl_journal_has_room(journal, count)) full = journal;
    }
    if (full) full->pins++;
    for (journal = newest; journal; journal = journal->older) {
        if (!full) {
            if (count == 2)
                madl_journal_put(journal, note.stream, note.tag << 4 | MADL_CONTEXT);
            madl_journal_put(journal, note.nbytes, note.key_and_kind);
        }
        madl_journal_leave(journal);
    }
    return full;
}

/* Make room in a pinned journal, and let go of it; in no guard. */
static inline void madl_settle(madl_journal *full, madl_note note) {
    madl_journal_make_room(full, note.stream | note.tag ? 2 : 1);
    madl_journal_enter(full);
    full->pins--;
    madl_journal_leave(full);
}

/* Wait until no thread makes room in a journal that no pool writes to any more. */
static inline void madl_journal_join(madl_journal *journal) {
    int turns = 0, pins;
    for (;;) {
        madl_journal_enter(journal);
        pins = journal->pins;
        madl_journal_leave(journal);
        if (!pins) return;
        madl_wait(&turns);
    }
}

#endif
