"""How many pools' locks each thread holds: what comes there must not wait for another.

A finalizer or a signal handler may come in the middle of a call of one pool, and
allocate from another one, whose lock is held by a thread that waits for the first, or
for whatever else is held there. So who is inside a pool never waits.
"""

import threading

locks_held: dict[int, int] = {}
"""By thread. Nothing is called to change an entry, so no signal handler comes between
that and the lock; therefore entries stay, with 0."""


def is_inside() -> bool:
    """Return whether this thread holds the lock of a pool."""
    return locks_held.get(threading.get_ident(), 0) > 0
