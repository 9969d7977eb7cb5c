"""A pool of a CUDA device in C, for allocators that call it with locks held.

A ``madl.Pool`` needs the GIL to grow, and an allocator such as PyTorch's may then hold
a lock that a thread with the GIL waits for: a deadlock. This pool grows by the driver's
own functions, called from C.
"""

import importlib
import os
from types import ModuleType
from typing import NamedTuple, cast

from madl import hotpath, settings
from madl.backends.cuda import CudaBackend
from madl.backends.protocol import Reservation
from madl.errors import ForkError, MissingCapabilityError, OutOfMemoryError
from madl.pool.growth import RESERVED_PER_MEMORY
from madl.sizes import align_up, format_nbytes, parse_nbytes

_pools: dict[int, "CudaPool"] = {}


class CudaPoolStats(NamedTuple):
    """A pool's figures at one moment, in bytes where the name ends so.

    Attributes:
        live_nbytes: Handed out, with padding: C callers tell nothing else at a free.
        live_high_water: The high-water mark of live bytes.
        committed_nbytes: Taken from the device.
        committed_high_water: The high-water mark of committed bytes.
        allocation_count: Allocations so far.
        free_count: Frees so far.
        refused_count: Allocations that failed: NULL, which the caller makes an error
            of.
        unknown_free_count: Frees of what is not live here; they change nothing.
        last_status: What the driver answered when it last refused something; 0 if it
            never did.
    """

    live_nbytes: int
    live_high_water: int
    committed_nbytes: int
    committed_high_water: int
    allocation_count: int
    free_count: int
    refused_count: int
    unknown_free_count: int
    last_status: int


class CudaPool:
    """Memory of one CUDA device for C code, under one limit.

    There is one for each device, for the life of the process. Address-ordered first
    fit in one range of addresses. A stream may reuse what it freed without waiting; at
    the limit it takes over free blocks of others, ordered on the device.

    Args:
        device: Such as ``"cuda:0"``.
        limit: Bytes that may be committed; ``None`` for what the device has.

    Raises:
        BackendNotFoundError: There is no such device.
        MissingCapabilityError: This install has no compiled core, or the device no
            virtual memory.
        ValueError: The device has such a pool already: see ``CudaPool.of``.

    Thread-safe.
    """

    def __init__(
        self, device: str = "cuda:0", *, limit: int | str | None = None
    ) -> None:
        self._native = _native(device)
        self._backend = CudaBackend(_index_of(device), memory="pages")
        self.device = self._backend.device
        self.index = self._backend.index
        if self.index in _pools:
            raise ValueError(
                f"{self.device} has a CudaPool already: {_pools[self.index]}; use "
                f"CudaPool.of({self.device!r})"
            )
        total = asked = self._backend.memory_info().total_nbytes
        if limit is not None:
            asked = min(parse_nbytes(limit, name="limit"), total)
        page_nbytes = self._backend.page_nbytes
        self.limit_nbytes: int = asked // page_nbytes * page_nbytes
        if not self.limit_nbytes:
            raise ValueError(
                f"limit must hold a page of {format_nbytes(page_nbytes)}, got {limit}"
            )
        reservation = self._reserve(total)
        try:
            self._open(reservation)
        except BaseException:
            self._backend.release(reservation)
            raise
        self._process = os.getpid()
        _pools[self.index] = self

    @staticmethod
    def of(device: str = "cuda:0") -> "CudaPool":
        """Return the device's pool; the first call makes it.

        Its limit is that of default pools, see ``madl.configure``, or else none.
        """
        index = _index_of(device)
        if index in _pools:
            return _pools[index]
        limit = cast("int | None", settings.read("limit", f"cuda:{index}"))
        return CudaPool(device, limit=limit)

    def _reserve(self, total_nbytes: int) -> Reservation:
        nbytes = align_up(total_nbytes * RESERVED_PER_MEMORY, self._backend.page_nbytes)
        while True:
            try:
                return self._backend.reserve(nbytes)
            except OutOfMemoryError:
                nbytes = align_up(nbytes // 2, self._backend.page_nbytes)
                if nbytes < self.limit_nbytes:
                    raise

    def _open(self, reservation: Reservation) -> None:
        calls, handles = self._backend.driver_parts(self._native.CALLS)
        self._native.open_pool(
            self.index,
            calls,
            **handles,
            base=reservation.address,
            reserved_nbytes=reservation.nbytes,
            page_nbytes=self._backend.page_nbytes,
            limit_nbytes=self.limit_nbytes,
        )

    @property
    def library(self) -> str:
        """The path of the shared library that the C functions are in."""
        return str(self._native.__file__)

    def stats(self) -> CudaPoolStats:
        """Return the pool's figures at this moment. Thread-safe.

        Raises:
            ForkError: In a forked child, where C callers get no memory either.
        """
        self._refuse_in_child()
        return CudaPoolStats(**self._native.stats_of(self.index))

    def trim(self) -> int:
        """Wait for the device, and give free memory at the end back to it.

        Returns:
            Bytes given back.

        Raises:
            ForkError: In a forked child.
        """
        self._refuse_in_child()
        given: int = self._native.trim(self.index)
        return given

    def check(self) -> None:
        """Verify every invariant of the pool. O(blocks). Thread-safe.

        Raises:
            CorruptedPoolError: With the one that is broken.
            ForkError: In a forked child.
        """
        self._refuse_in_child()
        self._native.check(self.index)

    def _refuse_in_child(self) -> None:
        if os.getpid() != self._process:
            raise ForkError(self.device, self._process)

    def __repr__(self) -> str:
        if os.getpid() != self._process:
            return f"<madl CudaPool on {self.device}: of process {self._process}>"
        live = self.stats().live_nbytes
        return f"<madl CudaPool on {self.device}: {live} bytes live>"


MALLOC, FREE, RECORD_STREAM = (
    f"madl_device_{name}" for name in ("malloc", "free", "record_stream")
)
"""The names of the C functions, which find the pool by the device's number."""


def _index_of(device: str) -> int:
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise ValueError(f"device must be a CUDA device, got {device!r}")
    return int(index or 0)


def _native(device: str) -> ModuleType:
    try:
        return importlib.import_module("madl.native.device_pools")
    except ImportError as error:
        raise MissingCapabilityError(
            device,
            "pool in C, as this install of madl is pure Python",
            hotpath.HOW_TO_COMPILE,
        ) from error
