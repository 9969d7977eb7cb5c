"""Memory of a CUDA device that another library holds: it is copied, and no more."""

from madl.backends.cuda.copies import CudaWork
from madl.backends.cuda.device import CudaDevice
from madl.backends.cuda.streams import CudaStreams
from madl.backends.protocol import Capability, Reservation


class CudaLent(CudaWork):
    """Copies whatever address it is given: whose it is, its holder knows.

    Args:
        index: The number of the device.
    """

    granularity = alignment = 1
    capabilities = Capability.COPY | Capability.FILL | Capability.STREAM_ORDERED

    def __init__(self, index: int) -> None:
        self.device = f"cuda:{index}"
        self._device = CudaDevice(self.device, index)
        self._streams = CudaStreams(self._device)
        self._is_host = False

    def _at(self, reservation: Reservation, offset: int, nbytes: int) -> int:
        assert reservation.address is not None, "CUDA has addresses"
        return reservation.address + offset

    def __eq__(self, other: object) -> bool:
        """Whether one stream runs on both: with every memory of the same device."""
        if not isinstance(other, CudaWork):
            return NotImplemented
        return self._device.index == other._device.index and not other._is_host

    def __hash__(self) -> int:
        return hash(self._device.index)
