"""A pool's options: read, checked against the device, and completed."""

import sys
from typing import Literal, NamedTuple, cast

from madl import settings
from madl.backends.counted import CountedBackend
from madl.backends.protocol import (
    Capability,
    CommitBackend,
    HandlePagesBackend,
    HugePageBackend,
    HugePages,
    NumaBackend,
    PrefaultBackend,
)
from madl.errors import MissingCapabilityError
from madl.hotpath import LARGEST_REQUEST_NBYTES
from madl.pool.debug.options import Debug, DebugOptions
from madl.settings.kinds import FITS as FITS
from madl.settings.kinds import Fit as Fit
from madl.sizes import ADDRESS_SPACE_NBYTES, parse_nbytes

Zero = bool | Literal["free"]
"""Whether memory is zeroed: never, before it is handed out, or when it is freed."""

FEWEST_PAGES_IN_LIMIT = 16
"""Pages shrink until a limit holds so many: else a small limit holds no block."""

SMALL_NBYTES = 1 << 20
"""Blocks up to here are small; where that is free they have their own arenas."""

LOOK_AHEAD = 8
"""Of the lowest blocks that fit, so many are looked at for a large block; the smallest
of them is taken. More gains nothing."""

LARGEST_CAPACITY_NBYTES = min(LARGEST_REQUEST_NBYTES, ADDRESS_SPACE_NBYTES - 1)

SEGMENT_NBYTES = 2 << 20
"""Segments are multiples of it, and of the backend's granularity."""

LEASH_DIVISOR = 64
"""At most this part of what is committed stays in bins when an allocation misses."""


class PoolOptions(NamedTuple):
    """Options of one pool, complete."""

    limit_nbytes: int | None
    fit: Fit
    recycle: bool
    page_nbytes: int
    pooling: bool
    has_bands: bool
    """Whether small and large blocks have arenas of their own."""
    soft_limit_nbytes: int | None = None
    zero: Zero = False
    debug: DebugOptions = DebugOptions()

    def look_ahead_of(self, band: int) -> int:
        """Return how many blocks that fit are looked at in a band."""
        if self.fit == "best":
            return sys.maxsize
        return LOOK_AHEAD if band else 1

    def segment_unit_nbytes(self, backend: CountedBackend) -> int:
        """Return what the bytes of every segment are a multiple of."""
        unit = max(SEGMENT_NBYTES, backend.granularity)
        if self.limit_nbytes is not None and self.limit_nbytes < 2 * unit:
            return backend.granularity  # small limits are met to the granule
        return unit

    def growth_nbytes(self, backend: CountedBackend, capacity: int) -> int:
        """Return the most that is committed for a block, under any larger limit."""
        unit = backend.granularity  # of a dedicated reservation
        if self.pooling and Capability.COMMIT in backend.capabilities:
            unit = self.page_nbytes
        elif self.pooling:
            unit = max(SEGMENT_NBYTES, unit)
        return -(-capacity // unit) * unit

    @staticmethod
    def resolve(
        backend: CountedBackend,
        *,
        limit: int | str | None,
        fit: Fit,
        recycle: bool,
        page_size: int | str | None,
        huge_pages: HugePages,
        prefault: bool,
        numa_node: int | None,
        zero: Zero,
        pooling: bool | None,
        soft_limit: int | str | None = None,
        debug: Debug = False,
    ) -> "PoolOptions":
        """Return what the arguments of a pool mean on a device.

        Raises:
            ValueError, TypeError, OverflowError: One of them is malformed.
            MissingCapabilityError: The device cannot honour one of them.
        """
        if fit not in FITS:
            raise ValueError(f"fit must be one of {', '.join(FITS)}, got {fit!r}")
        limit_nbytes = None if limit is None else parse_nbytes(limit, name="limit")
        soft_limit_nbytes = check_soft_limit(soft_limit, limit_nbytes)
        page_nbytes = _page_nbytes(backend, page_size, limit_nbytes)
        _choose_prefault(backend, prefault)
        _choose_huge_pages(backend, page_nbytes, huge_pages)
        _choose_node(backend, numa_node)
        debugging = DebugOptions.resolve(
            backend, debug, zero=zero, pooling=pooling, huge_pages=huge_pages
        )
        if debugging.has_guard_pages:
            pooling = True  # whatever MADL_POOL says: they are the pool's work
        return PoolOptions(
            limit_nbytes,
            fit,
            recycle,
            page_nbytes,
            _is_pooling(backend, pooling),
            Capability.COMMIT in backend.capabilities,
            soft_limit_nbytes,
            _check_zero(backend, zero),
            debugging,
        )


def check_soft_limit(soft_limit: int | str | None, limit: int | None) -> int | None:
    """Return a soft limit in bytes.

    Raises:
        ValueError, TypeError, OverflowError: It is malformed, or is not below ``limit``
            and so would never warn.
    """
    if soft_limit is None:
        return None
    nbytes = parse_nbytes(soft_limit, name="soft_limit")
    if limit is not None and nbytes >= limit:
        raise ValueError(
            f"soft_limit must be below the limit of {limit} bytes, got {nbytes}"
        )
    return nbytes


def _lack(backend: CountedBackend, what: str, option: str) -> MissingCapabilityError:
    """Return the error for an option that the device cannot honour."""
    return MissingCapabilityError(backend.device, what, f"leave out {option}=")


def _is_pooling(backend: CountedBackend, wanted: bool | None) -> bool:
    if wanted not in (None, True, False):
        raise TypeError(f"pooling must be True, False or None, got {wanted!r}")
    if Capability.SHARE in backend.capabilities:
        # Other processes see all of a reservation, so its block is alone there; and
        # may see it for as long as they like, so it is never handed out again.
        if wanted:
            what = "reuse of blocks, which other processes may still see"
            raise _lack(backend, what, "pooling")
        return False
    if wanted is None:
        return bool(settings.read("pooling", backend.device))
    return wanted


def _page_nbytes(
    backend: CountedBackend, page_size: int | str | None, limit_nbytes: int | None
) -> int:
    if Capability.COMMIT not in backend.capabilities:
        if page_size is not None:
            raise _lack(backend, "pages, which page_size= sets", "page_size")
        return backend.granularity
    if page_size is None:
        page_nbytes = cast("CommitBackend", backend.backend).page_nbytes
        by_handles = _by_handles(backend)
        if limit_nbytes is not None and by_handles is not None:
            page_nbytes = by_handles.page_nbytes_for(limit_nbytes)
        elif limit_nbytes is not None:
            while (
                page_nbytes > backend.granularity
                and page_nbytes * FEWEST_PAGES_IN_LIMIT > limit_nbytes
            ):
                page_nbytes //= 2
        return max(page_nbytes, backend.granularity)
    page_nbytes = parse_nbytes(page_size, name="page_size")
    if page_nbytes == 0 or page_nbytes % backend.granularity:
        raise ValueError(
            f"page_size must be a multiple of {backend.granularity} bytes on "
            f"{backend.device}, got {page_nbytes}"
        )
    return page_nbytes


def least_limit_nbytes(backend: CountedBackend, capacity: int) -> int:
    """Return a limit under which an empty pool can place one block of a capacity."""
    least = -(-capacity // backend.granularity) * backend.granularity
    if Capability.COMMIT not in backend.capabilities:
        return least
    page_nbytes = _page_nbytes(backend, None, least)
    return -(-least // page_nbytes) * page_nbytes


def is_zeroed_by_host(backend: CountedBackend) -> bool:
    """Return whether the host writes zeros itself: no stream uses the memory."""
    can = backend.capabilities
    return Capability.HOST_ACCESS in can and Capability.STREAM_ORDERED not in can


def _check_zero(backend: CountedBackend, zero: Zero) -> Zero:
    if not isinstance(zero, bool) and zero != "free":
        raise ValueError(f"zero must be True, False or 'free', got {zero!r}")
    is_possible = is_zeroed_by_host(backend) or Capability.FILL in backend.capabilities
    if zero and not is_possible:
        raise _lack(backend, "way to write zeros", "zero")
    return zero


def _choose_huge_pages(
    backend: CountedBackend,
    page_nbytes: int,
    wanted: HugePages,  # an option of Pool, passed on
) -> None:
    if wanted not in (None, True, False, "explicit"):
        raise ValueError(
            f"huge_pages must be True, False, 'explicit' or None, got {wanted!r}"
        )
    by_handles = _by_handles(backend)
    if by_handles is not None and wanted != "explicit":
        by_handles.choose_pages(page_nbytes, huge=wanted)
    elif Capability.HUGE_PAGES in backend.capabilities:
        inner = cast("HugePageBackend", backend.backend)
        inner.choose_pages(page_nbytes, huge=wanted)
    elif wanted is not None:
        raise _lack(backend, "huge pages", "huge_pages")


def _choose_prefault(
    backend: CountedBackend,
    wanted: bool,  # an option of Pool, passed on
) -> None:
    if Capability.PREFAULT in backend.capabilities:
        cast("PrefaultBackend", backend.backend).choose_prefault(prefault=wanted)
    elif wanted:
        raise _lack(backend, "memory that can be faulted in", "prefault")


def _choose_node(backend: CountedBackend, node: int | None) -> None:
    if node is not None and (isinstance(node, bool) or not isinstance(node, int)):
        raise TypeError(f"numa_node must be an int or None, got {node!r}")
    if node is not None and node < 0:
        raise ValueError(f"numa_node must not be negative, got {node}")
    if Capability.NUMA in backend.capabilities:
        cast("NumaBackend", backend.backend).choose_node(node)
    elif node is not None:
        raise _lack(backend, "NUMA nodes", "numa_node")


def _by_handles(backend: CountedBackend) -> HandlePagesBackend | None:
    if Capability.HANDLE_PAGES in backend.capabilities:
        return cast("HandlePagesBackend", backend.backend)
    return None
