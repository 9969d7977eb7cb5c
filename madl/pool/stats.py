"""A pool's figures at one moment, as plain data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


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
