"""From addresses to ids: for files that name blocks by where they lie."""

from madl.diagnostics.traces.builder import BadEventError, TraceBuilder
from madl.stacks import Stack

LIVE_LIMIT = 1 << 22
"""Blocks live at once: about 100 bytes each are in memory."""


class LiveBlocks:
    """Adds allocations and frees of addresses to a trace.

    More than one block may be live at one address, as those of zero bytes are; a free
    ends the latest. One that ends none is of a block from before the file began.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._ids: dict[int, int | list[int]] = {}
        self._live = 0
        self._unknown = 0

    def allocate(
        self,
        address: int,
        nbytes: int,
        *,
        stream: int = 0,
        tag: str | None = None,
        stack: Stack = (),
    ) -> None:
        """Add an allocation."""
        if self._live == LIVE_LIMIT:
            raise BadEventError(f"more than {LIVE_LIMIT} blocks are live at once")
        self._live += 1
        new = self._builder.allocate(nbytes, stream=stream, tag=tag, stack=stack)
        old = self._ids.get(address)
        if old is None:
            self._ids[address] = new
        elif isinstance(old, list):
            old.append(new)
        else:
            self._ids[address] = [old, new]

    def free(self, address: int) -> None:
        """Add the free of what was allocated last at an address."""
        found = self._ids.pop(address, None)
        if found is None:
            self._unknown += 1
            return
        if isinstance(found, list):
            latest = found.pop()
            self._ids[address] = found if len(found) > 1 else found[0]
        else:
            latest = found
        self._live -= 1
        self._builder.free(latest)

    def finish(self) -> None:
        """Note the frees that were left out."""
        if self._unknown:
            self._builder.notes.append(
                f"frees of what was allocated before are left out: {self._unknown}"
            )
