"""What is told of allocations, and to whom: the current tag and the listeners."""

from contextvars import ContextVar
from typing import NamedTuple, Protocol

from madl.pool.soft_limits import SoftLimit
from madl.stacks import Stack


class Listener(Protocol):
    """Is told of every allocation and free while it is in ``listeners``.

    Called with no lock held. ``freed`` also runs in finalizers: it must not block,
    allocate from a pool, or raise.
    """

    def allocated(
        self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
    ) -> int:
        """Take note of an allocation; return the id that ``freed`` is called with.

        Args:
            nbytes: As asked for.
            tag: Its own, or that of the context.
            stream_number: Streams of a pool count 1, 2, ...; 0 is the default.
            stack: Of as many lines as anybody wants; empty when nobody does.
        """

    def freed(self, allocation_id: int) -> None:
        """Take note of a free."""


listeners: list[Listener] = []


class TagScope:
    """One ``with madl.tag(...)``: the last part of a tag, and what it bounds."""

    def __init__(
        self, name: str, limit_nbytes: int | None, soft_limit_nbytes: int | None
    ) -> None:
        self.name = name
        self.limit_nbytes = limit_nbytes
        self.soft_limit_nbytes = soft_limit_nbytes
        self._soft: dict[str, SoftLimit] = {}

    def soft_on(self, device: str) -> SoftLimit:
        """Return the soft limit as it stands on a device."""
        return self._soft.setdefault(device, SoftLimit(self.soft_limit_nbytes))


class TagPath(NamedTuple):
    """The tags around an allocation, outermost first."""

    name: str
    """As in ``"model/encoder"``."""
    scopes: tuple[TagScope, ...]
    bounds: dict[str, TagScope]
    """Those that have a limit, by the tag that it is of."""

    @staticmethod
    def of(scopes: tuple[TagScope, ...]) -> "TagPath | None":
        """Return the path through scopes; ``None`` without any."""
        if not scopes:
            return None
        names = [scope.name for scope in scopes]
        bounds = {
            "/".join(names[: depth + 1]): scope
            for depth, scope in enumerate(scopes)
            if (scope.limit_nbytes, scope.soft_limit_nbytes) != (None, None)
        }
        return TagPath("/".join(names), scopes, bounds)


current_tag: ContextVar[TagPath | None] = ContextVar("madl_tag", default=None)
