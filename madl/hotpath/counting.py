"""What keeps counts right where there is no interpreter lock: ``+=`` loses some there.

One lock for all that counts, since finalizers may count in the middle of a count.
"""

import contextlib
import os
import sys
import threading

HAS_INTERPRETER_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()

counting: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
"""Held for a few instructions that call nothing, or nobody who waits. Reentrant."""

if not HAS_INTERPRETER_LOCK:
    _lock = counting = threading.RLock()
    if hasattr(os, "register_at_fork"):
        # Whoever holds it in another thread is gone in the child, and never leaves.
        os.register_at_fork(
            before=_lock.acquire,
            after_in_parent=_lock.release,
            after_in_child=_lock.release,
        )
