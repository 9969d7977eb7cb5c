"""Interoperation with other CUDA libraries: their arrays copied, madl's exported.

An array is recognised by CUDA's array interface, whichever library it is of.
"""

import importlib
import math
from typing import Any

from madl.backends.cuda.copies import WORK, CudaWork
from madl.backends.cuda.device import CudaDevice
from madl.backends.cuda.streams import handle_of
from madl.backends.protocol import ArrayPlace, DlpackExporter, MemoryInfo, Reservation
from madl.errors import MissingCapabilityError, NotContiguousError


class CudaExchange:
    """The part of a CUDA backend that other libraries ask what lies where."""

    device: str
    _device: CudaDevice

    @property
    def index(self) -> int:
        """The device's number, as CUDA_VISIBLE_DEVICES leaves them."""
        return self._device.index

    def stream_handle(self, stream: object) -> int:
        """Return the driver's handle of a stream, 1 for the legacy default one."""
        return handle_of(stream)

    def buffer_over(self, address: int, nbytes: int, owner: object) -> DlpackExporter:
        """Return a view of ``cuda.core``, whose DLPack capsules are native.

        Those of its buffers are too, but of ``int8``.

        Raises:
            MissingCapabilityError: cuda.core is not installed, or too old.
        """
        import numpy as np

        try:
            core = importlib.import_module("cuda.core")
            view = importlib.import_module("cuda.core.utils").StridedMemoryView
        except ImportError as error:
            raise MissingCapabilityError(
                self.device, "DLPack without cuda.core", "pip install cuda-core"
            ) from error
        if not hasattr(view, "__dlpack__"):
            raise MissingCapabilityError(
                self.device,
                f"DLPack with cuda.core {core.__version__}",
                "pip install --upgrade cuda-core",
            )
        with self._device.current():
            buffer = core.Buffer.from_handle(address, nbytes, owner=owner)
            made: DlpackExporter = view.from_buffer(
                buffer, (nbytes,), dtype=np.dtype(np.uint8)
            )
        return made


class CudaLent(CudaWork):
    """Copies memory that another library owns, at any address.

    Args:
        index: The number of the device.
    """

    granularity = alignment = 1
    capabilities = WORK

    def __init__(self, index: int) -> None:
        self.device = f"cuda:{index}"
        super().__init__(CudaDevice(self.device, index))
        self._is_host = False

    def reserve(self, nbytes: int) -> Reservation:
        """Raise: its memory is reserved by another library."""
        raise self._not_ours()

    def release(self, reservation: Reservation) -> None:
        """Raise, likewise."""
        raise self._not_ours()

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory."""
        return self._device.memory_info()

    def _not_ours(self) -> MissingCapabilityError:
        return MissingCapabilityError(
            self.device, "reservations in memory of another library", "CudaBackend"
        )

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


def wrap_array(array: Any) -> ArrayPlace:  # noqa: ANN401  # of CuPy, Numba, PyTorch
    """Return where an array lies that offers CUDA's array interface.

    Raises:
        NotContiguousError: It has gaps.
    """
    import numpy as np

    interface = array.__cuda_array_interface__
    shape, strides = interface["shape"], interface.get("strides")
    itemsize = np.dtype(interface["typestr"]).itemsize
    if strides is not None and not _has_no_gaps(shape, strides, itemsize):
        raise NotContiguousError(tuple(shape), tuple(strides))
    address, is_readonly = interface["data"]
    has_index = hasattr(array, "__dlpack_device__")
    index = array.__dlpack_device__()[1] if has_index else 0
    nbytes = math.prod(shape) * itemsize
    reservation = Reservation(address, nbytes, address)
    stream = interface.get("stream")
    return ArrayPlace(CudaLent(index), reservation, 0, nbytes, stream, is_readonly)


def _has_no_gaps(shape: Any, strides: Any, itemsize: int) -> bool:  # noqa: ANN401  # sequences
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length == 0:
            return True
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
