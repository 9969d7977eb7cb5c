"""CUDA memory in one piece: cuMemAlloc, stream-ordered, pinned and managed."""

from typing import NamedTuple

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


class SegmentReservation:
    """Memory in one piece, committed from start to end; taken when this is made."""

    is_going = False
    """Whether the driver has been asked to take it back."""

    def __init__(self, device: CudaDevice, memory: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self._calls, sort = device.calls, SORTS[memory]
        order = (device.own_stream(),) if memory == "async" else ()
        taken = self._calls.take(
            *("reserve", sort.take, nbytes, *sort.flags, *order),
            nbytes=nbytes,
            of=sort.of,
        )
        self.address = int(taken)
        self._give = sort.give, self.address, *order
        if order:
            # Else only this stream could use it: for others no event orders their work
            # behind the allocation.
            try:
                self._calls.call("reserve", "cuStreamSynchronize", *order)
            except BaseException:
                self._calls.quietly(*self._give)
                raise

    def release(self) -> None:
        """Give it back, or change nothing."""
        self.is_going = True
        self._calls.call("release", *self._give)
