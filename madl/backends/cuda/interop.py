"""CUDA memory as other libraries want to hear of it."""

import importlib
from typing import Any

from madl.backends.cuda.device import CudaDevice
from madl.backends.cuda.streams import handle_of
from madl.errors import MissingCapabilityError


class CudaExchange:
    """The part of a CUDA backend that tells other libraries what lies where."""

    device: str
    _device: CudaDevice

    @property
    def index(self) -> int:
        """The device's number, as CUDA_VISIBLE_DEVICES leaves them."""
        return self._device.index

    def stream_handle(self, stream: object) -> int:
        """Return the driver's handle of a stream, 1 for the legacy default one."""
        return handle_of(stream)

    def buffer_over(self, address: int, nbytes: int, owner: object) -> Any:  # noqa: ANN401  # cuda.core has no types here
        """Return a buffer of ``cuda.core``, whose DLPack capsules are native.

        Args:
            address: Where it starts.
            nbytes: How long it is.
            owner: What the buffer, and every capsule of it, keeps.

        Raises:
            MissingCapabilityError: cuda.core is not installed.
        """
        try:
            core = importlib.import_module("cuda.core")
        except ImportError as error:
            raise MissingCapabilityError(
                self.device, "DLPack without cuda.core", "pip install cuda-core"
            ) from error
        with self._device.current():
            return core.Buffer.from_handle(address, nbytes, owner=owner)
