"""Keep a memory's block, and its size, while a call reads or writes it by address.

A signal handler or another thread may free or resize the memory meanwhile: the free
waits until the call is over, and the resize is refused.
"""

import sys
from types import TracebackType
from typing import Self

from madl.backends.protocol import Capability
from madl.hotpath import Memory, Root
from madl.location import Slice, locate
from madl.views import new_root


def hold(memory: Memory, use: str) -> Root | None:
    """Return what keeps a block as long as it lives; ``None`` without bytes.

    Raises:
        FreedMemoryError: The memory was freed; ``use`` is what the caller wanted to do.
    """
    while isinstance(memory._root, Slice):
        memory = memory._root.parent
    root: Root | None = memory._root
    while root is None:
        arena = locate(memory, use).arena
        if arena is None:
            return None
        can_be_viewed = Capability.HOST_ACCESS in memory._pool.capabilities
        if can_be_viewed and memory._nbytes <= sys.maxsize:
            root = new_root(memory, use)
        else:
            root = memory._keep_by(Root.over(0, 0))  # it shows the CPU nothing
    return root


class Held:
    """Holds the block of a memory for the length of a ``with`` block."""

    __slots__ = ("_memory", "_root", "_was_viewed")

    def __init__(self, memory: Memory, use: str) -> None:
        while isinstance(memory._root, Slice):
            memory = memory._root.parent
        self._memory = memory
        self._was_viewed = memory._root is not None
        self._root = hold(memory, use)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._root = None
        if not self._was_viewed:  # what views have left behind makes the next one cheap
            self._memory._detach()
