"""Fork safety: a child never calls into the OpenCL driver that its parent opened.

The threads in which a driver runs its work are not in the child, so a call may wait
there for ever, and a release may reach what is the parent's.
"""

import ctypes
import os
import weakref
from typing import Any

from madl.errors import ForkError

_opened: list[int] = []  # the process that opened a device first
_forked: list[int] = []  # the same, in its children
_backends: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def note_opening(device: str) -> None:
    """Take note that this process opens a device.

    Raises:
        ForkError: Its parent has opened one.
    """
    check_process(device)
    if not _opened:
        _opened.append(os.getpid())


def is_child() -> bool:
    """Return whether a parent of this process has opened a device."""
    return bool(_forked)


def check_process(device: str) -> None:
    """Raise in a forked child.

    Raises:
        ForkError: The parent has opened a device.
    """
    if _forked:
        raise ForkError(device, _forked[0])


def leave_to_parent(backend: Any) -> None:  # noqa: ANN401  # OpenclBackend, which is not known here
    """Let a child never destroy a backend, nor what it holds at the fork."""
    _backends[id(backend)] = backend  # by id, as two backends may be equal


def _after_fork_in_child() -> None:
    if not _forked:
        _forked.extend(_opened)
    for backend in list(_backends.values()):
        for kept in (backend, *backend.held.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
