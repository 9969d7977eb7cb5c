"""Keep a memory's block, and its size, while a call reads or writes it by address.

A signal handler or another thread may free or resize the memory meanwhile: the free
waits until the call is over, and the resize is refused.
"""

import sys
from types import TracebackType
from typing import Self

from madl.hotpath import Memory, Root
from madl.memory.place import HOST, locate, uncut


def hold(memory: Memory, use: str) -> Root | None:
    """Return what keeps a block as long as it lives; ``None`` without bytes.

    Raises:
        FreedMemoryError: The memory was freed; ``use`` is what the caller wanted to do.
    """
    memory = uncut(memory)
    root: Root | None = memory._root
    while root is None:
        placed = memory._place()
        arena, offset = locate(memory, use) if placed is None else placed[:2]
        if arena is None:
            return None
        nbytes = memory._nbytes
        shown = 0, 0  # the CPU sees nothing of it
        if memory._pool.capabilities._value_ & HOST and nbytes <= sys.maxsize:
            assert arena.address is not None, "HOST_ACCESS implies addresses"
            shown = arena.address + offset, nbytes
        root = memory._keep_by(Root.over(*shown))
    return root


class Held:
    """Holds the block of a memory for the length of a ``with`` block."""

    __slots__ = ("_memory", "_root", "_was_viewed")

    def __init__(self, memory: Memory, use: str) -> None:
        self._memory = memory = uncut(memory)
        root: Root | None = memory._root
        self._was_viewed = root is not None
        self._root = hold(memory, use) if root is None else root

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
