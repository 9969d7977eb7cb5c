"""What both bodies of the hot path share: arenas, watches, and what is not hot."""

from collections.abc import Callable
from typing import Any, NamedTuple

from madl.core.first_fit import FirstFit
from madl.stacks import Stack

BLOCK_GRANULARITY = 512
"""Capacities and offsets of blocks are multiples of it: the alignment that CUDA
promises, so that the same program has the same offsets on every device."""


LARGEST_REQUEST_NBYTES = 1 << 62
"""What offsets of 64 bits, and sums of two, leave room for."""

cold: dict[str, Callable[..., Any]] = {}
"""The functions behind the methods of ``Memory`` that are not hot, by name."""

known_dtypes: dict[Any, Any] = {}
"""NumPy's data types that arrays over memory may have, by what callers named them."""


def register_cold(functions: dict[str, Callable[..., Any]]) -> None:
    """Give ``Memory`` the functions behind its methods that are not hot."""
    cold.update(functions)


class HotArena:
    """What the hot path knows of an arena."""

    def __init__(
        self, blocks: FirstFit, address: int | None, *, is_apart: bool
    ) -> None:
        self.blocks = blocks
        self.address = address
        self.is_apart = is_apart  # holds one block, placed outside the pool's order


class Watch:
    """Whoever wants to know of a block's free: a tag's usage, a recording."""

    tag: str | None = None
    stack: Stack = ()
    is_viewed = False
    """Whether somebody else may keep the block, so that a drop is no missing free."""

    def dropped(self) -> None:
        """Take note of the free of a handle that nobody has any more."""
        self.freed()

    def freed(self) -> None:
        """Take note. Runs in finalizers: no lock, no pool, nothing that raises."""


class BlockState(NamedTuple):
    """A placed block, as statistics and snapshots see it."""

    arena: HotArena
    offset: int
    capacity: int
    is_live: bool
    nbytes: int
    tag: str | None
    stack: Stack


class NativeFunctions(NamedTuple):
    """Addresses of C functions over one pool, and the context they are called with.

    ``void *malloc(void *context, size_t nbytes)``,
    ``void *calloc(void *context, size_t count, size_t nbytes)``,
    ``void *realloc(void *context, void *pointer, size_t nbytes)``,
    ``void free(void *context, void *pointer, size_t nbytes)``.
    They return NULL when there is no memory, and may be called by any thread.
    """

    context: int
    malloc: int
    calloc: int
    realloc: int
    free: int
