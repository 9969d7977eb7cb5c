"""A pool's figures, and where its blocks lie, at one moment: plain data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from madl.stacks import Stack


class TagStats(NamedTuple):
    """What one tag holds. Bytes, unless the name says otherwise.

    Attributes:
        live_nbytes: Handed out and not freed, as asked for.
        live_high_water_nbytes: The most that was live at once.
        padding_nbytes: Handed out beyond what was asked for, by rounding.
        allocation_count: Allocations so far.
        free_count: Frees so far.
    """

    live_nbytes: int
    live_high_water_nbytes: int
    padding_nbytes: int
    allocation_count: int
    free_count: int


class PoolStats(NamedTuple):
    """A pool at one moment. Bytes, unless the name says otherwise.

    Attributes:
        device: The device, as in ``"cuda:0"``.
        live_nbytes: Handed out, as asked for.
        padding_nbytes: Handed out beyond what was asked for, by rounding.
        cached_nbytes: Free in bins.
        committed_nbytes: Really taken from the device.
        reserved_nbytes: Address space taken; what is not committed has no memory behind
            it.
        live_high_water_nbytes: The most that was live at once.
        committed_high_water_nbytes: The most that was committed at once.
        largest_free_nbytes: The largest piece of committed, free memory, bins included.
        fragmentation_ratio: ``1 - largest_free / free`` over committed free bytes; 0
            when none is free.
        allocation_count: Allocations so far.
        free_count: Frees so far.
        miss_count: Allocations that no bin could serve.
        search_steps: Nodes that first-fit searches visited.
        backend_calls: Calls to the device's API: reserve, commit, remap, decommit,
            release.
        recycled_pages: Idle pages that were committed elsewhere instead of taking new
            memory.
        tags: The figures of each tag.
    """

    device: str
    live_nbytes: int
    padding_nbytes: int
    cached_nbytes: int
    committed_nbytes: int
    reserved_nbytes: int
    live_high_water_nbytes: int
    committed_high_water_nbytes: int
    largest_free_nbytes: int
    fragmentation_ratio: float
    allocation_count: int
    free_count: int
    miss_count: int
    search_steps: int
    backend_calls: int
    recycled_pages: int
    tags: Mapping[str, TagStats] = MappingProxyType({})

    def as_dict(self) -> dict[str, object]:
        """Return the figures as plain containers, ready for ``json.dumps``."""
        return self._asdict() | {"tags": {k: v._asdict() for k, v in self.tags.items()}}

    @property
    def free_nbytes(self) -> int:
        """Committed bytes of no live block, bins included."""
        return self.committed_nbytes - self.live_nbytes - self.padding_nbytes


class BlockSnapshot(NamedTuple):
    """A part of an arena.

    Attributes:
        offset: Bytes from the start of the arena.
        capacity_nbytes: Bytes that it takes there.
        state: ``"live"``, ``"binned"`` or ``"free"``.
        nbytes: Bytes asked for, while live.
        tag: What it is for, while live.
        stack: Where it was allocated, while ``keep_stacks`` is in force.
    """

    offset: int
    capacity_nbytes: int
    state: str
    nbytes: int = 0
    tag: str | None = None
    stack: Stack = ()


class ArenaSnapshot(NamedTuple):
    """A reservation: its blocks without gaps, lowest first, and its pages.

    Attributes:
        nbytes: Bytes of address space.
        address: Where it starts; ``None`` where the device has no addresses.
        page_nbytes: The unit in which it is committed.
        committed_runs: Runs ``(offset, nbytes)`` of committed memory, lowest first.
        blocks: All of its blocks.
    """

    nbytes: int
    address: int | None
    page_nbytes: int
    committed_runs: tuple[tuple[int, int], ...]
    blocks: tuple[BlockSnapshot, ...]


class PoolSnapshot(NamedTuple):
    """All arenas of a pool.

    Attributes:
        device: The device, as in ``"cuda:0"``.
        live_nbytes: Handed out, as asked for.
        committed_nbytes: Really taken from the device.
        arenas: In the order in which they were reserved.
    """

    device: str
    live_nbytes: int
    committed_nbytes: int
    arenas: tuple[ArenaSnapshot, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it as plain containers, ready for ``json.dumps``."""
        arenas = [
            arena._asdict() | {"blocks": [block._asdict() for block in arena.blocks]}
            for arena in self.arenas
        ]
        return self._asdict() | {"arenas": arenas}
