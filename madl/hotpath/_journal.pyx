"""A journal that pools write to by themselves, compiled.

The twin of ``PlainJournal`` in ``diagnostics.traces.journal``: the same records, but
the hot path writes them, without a call to Python. ``journal.h`` has how.
"""

import itertools
import os

from libc.stdint cimport uint64_t

from madl.hotpath._compiled cimport write_to
from madl.hotpath.bins cimport madl_journal, madl_journal_join

cdef extern from "journal.h":
    const bint MADL_HAS_JOURNAL
    void madl_journal_open(madl_journal* journal, int file) noexcept nogil
    void madl_journal_close(madl_journal* journal) noexcept nogil
    void madl_journal_put_all(
        madl_journal* journal, const char* records, size_t count
    ) noexcept nogil

if not MADL_HAS_JOURNAL:
    raise ImportError("this system has no mmap")

cdef list listening = []
cdef object numbers = itertools.count(1)
cdef dict tag_numbers = {}

if hasattr(os, "register_at_fork"):  # what listens there is the parent's
    os.register_at_fork(after_in_child=listening.clear)


cdef class Journal:
    """Records of 16 bytes in a mapped file; all pools write while it listens."""

    hears_pools = True

    cdef madl_journal journal
    cdef set numbers_defined

    def __init__(self, int file):
        self.numbers_defined = set()
        madl_journal_open(&self.journal, file)

    def __dealloc__(self):
        madl_journal_close(&self.journal)

    def put(self, bytes records):
        """Write whole records, one behind the other."""
        madl_journal_put_all(&self.journal, records, len(records) // 16)

    def listen(self, define_tag):
        """Let all pools write here, too.

        ``define_tag(number, tag)`` is called before a tag's number is first written.
        """
        listening.append((self, define_tag))
        relink()

    def stop_listening(self):
        """Let no pool write here any more; again, it does nothing."""
        listening[:] = [entry for entry in listening if entry[0] is not self]
        relink()
        with nogil:  # a thread that appends to the file holds no guard
            madl_journal_join(&self.journal)
        if not listening:
            tag_numbers.clear()

    @property
    def error(self):
        """The errno that ended the writing, or 0."""
        return self.journal.error

    @property
    def end(self):
        """Bytes of all records that were written."""
        return self.journal.end


cdef int relink() except -1:
    """Chain the journals that listen, and let the pools know."""
    cdef madl_journal* newest = NULL
    cdef Journal journal
    for journal, _ in listening:
        journal.journal.linked = newest
        newest = &journal.journal
    write_to(newest, number_tag if listening else None)
    return 0


def number_tag(tag):
    """Return a number for a tag, which all journals that listen have been told."""
    cdef Journal journal
    number = tag_numbers.get(tag)
    if number is None:
        number = tag_numbers[tag] = next(numbers)
    for journal, define_tag in listening:
        if number not in journal.numbers_defined:
            define_tag(number, tag)
            journal.numbers_defined.add(number)  # last: another thread may come before
    return number
