"""CUDA memory in one piece: cuMemAlloc, stream-ordered, pinned and managed."""

from typing import Any, NamedTuple

from madl.backends.cuda.device import CudaDevice

_PORTABLE, _ATTACH_GLOBAL = 1, 1  # of the driver's interface
_OF_HOST = "of host memory that can be pinned, not of device memory"


class _Sort(NamedTuple):
    take: str
    flags: tuple[int, ...]
    give: str
    of: str


SORTS = {
    "segments": _Sort("cuMemAlloc", (), "cuMemFree", ""),
    "async": _Sort("cuMemAllocAsync", (), "cuMemFreeAsync", ""),
    "pinned": _Sort("cuMemHostAlloc", (_PORTABLE,), "cuMemFreeHost", _OF_HOST),
    "managed": _Sort("cuMemAllocManaged", (_ATTACH_GLOBAL,), "cuMemFree", ""),
}
"""By the names that ``CudaBackend`` has for them. Portable: pinned for all devices."""


class CudaSegments:
    """What the driver does for reservations that are memory from the start."""

    def __init__(self, device: CudaDevice, sort: str) -> None:
        self.device = device
        self.sort = sort

    def reserve(self, nbytes: int) -> "SegmentReservation":
        """Take memory."""
        sort, calls = SORTS[self.sort], self.device.calls
        order = self._order()
        address = int(
            calls.take(
                "reserve",
                sort.take,
                nbytes,
                *sort.flags,
                *order,
                nbytes=nbytes,
                of=sort.of,
            )
        )
        made = SegmentReservation(self, address, nbytes)
        if order:
            # Else only this stream could use it: for others no event orders their work
            # behind the allocation.
            try:
                calls.call("reserve", "cuStreamSynchronize", *order)
            except BaseException:
                calls.quietly(sort.give, address, *order)
                raise
        return made

    def release(self, address: int) -> None:
        """Give memory back."""
        give = SORTS[self.sort].give
        self.device.calls.call("release", give, address, *self._order())

    def _order(self) -> tuple[Any, ...]:
        return (self.device.own_stream(),) if self.sort == "async" else ()


class SegmentReservation:
    """Memory in one piece, committed from start to end."""

    is_going = False
    """Whether the driver has been asked to take it back."""

    def __init__(self, segments: CudaSegments, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self._segments = segments

    def release(self) -> None:
        """Give it back, or change nothing."""
        self.is_going = True
        self._segments.release(self.address)
