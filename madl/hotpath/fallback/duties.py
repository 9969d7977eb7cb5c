"""What the hot path leaves to the pool above it, for type checkers and readers."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from madl.backends.protocol import Capability
from madl.hotpath.fallback.block import Block
from madl.hotpath.fallback.memory import Memory
from madl.hotpath.shared import BlockState, HotArena


class PoolDuties:
    """What a ``HotPool`` calls and does not have. Compiled, it just calls it."""

    __slots__ = ()

    device: str
    capabilities: Capability
    _joined: Any = None  # of a lane, the pool itself: see JoinedPool

    @abstractmethod
    def _allocate_with(
        self,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> Memory:
        """Allocate where an argument needs more than a look at a bin."""

    @abstractmethod
    def _place_slowly(self, nbytes: int, capacity: int, alignment: int) -> Block:
        """Return a block where pages have to be found for it, or raise."""

    @abstractmethod
    def _place_apart(self, nbytes: int) -> Block:
        """Return a block in an arena of its own: for a call within a call."""

    @abstractmethod
    def _zero_new(self, block: Block) -> None:
        """Set a block to zero that nobody has yet, or raise."""

    @abstractmethod
    def _release_apart(self, arena: HotArena) -> None:
        """Give back an arena of one block, which is free."""

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether it serves no allocation any more."""

    @property
    @abstractmethod
    def _head(self) -> Any:  # noqa: ANN401  # Pool, which is not known here
        """The pool itself, or the one that it is a lane of."""

    @abstractmethod
    def _family(self) -> Sequence[Any]:
        """Return the pool and its lanes."""

    @abstractmethod
    def _all_states(self) -> list[BlockState]:
        """Return every placed block of the pool and its lanes."""

    @abstractmethod
    def _all_misses(self) -> int:
        """Return how many allocations of the pool and its lanes found no bin."""

    @abstractmethod
    def _unplace_when_unused(self, block: Block, arena: HotArena, offset: int) -> None:
        """Unplace a block as soon as no stream uses it any more."""

    @abstractmethod
    def _freed_after_close(self) -> None:
        """Give back what was freed since the pool was closed. Runs in finalizers."""
