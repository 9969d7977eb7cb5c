"""What is in a weak set while other threads, and finalizers, add to it."""

import weakref
from typing import TypeVar

_Member = TypeVar("_Member")


def living(members: "weakref.WeakSet[_Member]") -> list[_Member]:
    """Return what a weak set holds now.

    It is gone through in Python, so others come in between, and it refuses to go on.
    """
    while True:
        try:
            return list(members)
        except RuntimeError:
            continue
