"""Which functions have a block in hand that is neither live nor in any list.

Other threads are in the middle of them whenever they lose the interpreter's lock there,
and this one when a signal handler or a finalizer runs. Blocks that seem lost may be
theirs.
"""

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])

_codes: set[CodeType] = set()
_WITHOUT = ("_allocate_missing", "_allocate_with")
"""What an allocation calls before it has a block."""


def has_block_in_hand(function: _Function) -> _Function:
    """Mark a function; it is returned as it is."""
    _codes.add(function.__code__)
    return function


def is_any_in_hand() -> bool:
    """Return whether a thread is in the middle of a function that is marked."""
    frames = sys._current_frames()
    # This one would refer to itself, and keep what all its callers have in hand.
    frames[threading.get_ident()] = sys._getframe(1)
    return any(map(_has_in_hand, frames.values()))


def _has_in_hand(frame: FrameType | None) -> bool:
    called = ""
    while frame is not None:
        if frame.f_code in _codes and called not in _WITHOUT:
            return True
        called = frame.f_code.co_name
        frame = frame.f_back
    return False
