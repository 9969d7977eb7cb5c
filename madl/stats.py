"""A pool's figures at one moment, as plain data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class TagStats(NamedTuple):
    """What one tag holds. Bytes, unless the name says otherwise."""

    live_nbytes: int
    live_high_water_nbytes: int
    padding_nbytes: int
    allocation_count: int
    free_count: int


class PoolStats(NamedTuple):
    """A pool at one moment. Bytes, unless the name says otherwise."""

    device: str
    live_nbytes: int
    """Handed out, as asked for."""
    padding_nbytes: int
    """Handed out beyond what was asked for, by rounding."""
    cached_nbytes: int
    """Free in bins."""
    committed_nbytes: int
    """Really taken from the device."""
    reserved_nbytes: int
    """Address space taken; what is not committed has no memory behind it."""
    live_high_water_nbytes: int
    committed_high_water_nbytes: int
    largest_free_nbytes: int
    """The largest piece of committed, free memory, bins included."""
    fragmentation_ratio: float
    """``1 - largest_free / free`` over committed free bytes; 0 when none is free."""
    allocation_count: int
    free_count: int
    miss_count: int
    """Allocations that no bin could serve."""
    search_steps: int
    """Nodes that first-fit searches visited."""
    backend_calls: int
    """Calls to the device's API: reserve, commit, remap, decommit, release."""
    recycled_pages: int
    """Idle pages that were committed elsewhere instead of taking new memory."""
    tags: Mapping[str, TagStats] = MappingProxyType({})

    def as_dict(self) -> dict[str, object]:
        """Return the figures as plain containers, ready for ``json.dumps``."""
        return self._asdict() | {"tags": {k: v._asdict() for k, v in self.tags.items()}}

    @property
    def free_nbytes(self) -> int:
        """Committed bytes of no live block, bins included."""
        return self.committed_nbytes - self.live_nbytes - self.padding_nbytes
