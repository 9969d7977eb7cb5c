"""Arrays of other libraries in a device's memory, as copies see them.

An array is recognised by what it offers, or by its class where a program has imported
its library already: nothing is imported to find out.
"""

import math
import sys
from typing import Any, cast

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Reservation
from madl.errors import NotContiguousError
from madl.memory.place import Part


class Foreign:
    """Somebody else's array: whose work comes first, and whether it may be written."""

    def __init__(self, array: object, stream: object, *, is_readonly: bool) -> None:
        self.array = array  # keeps the memory
        self.stream = stream
        self.is_readonly = is_readonly


def is_on_device(array: Any) -> bool:  # noqa: ANN401  # whatever a user copies
    """Return whether an array lies in memory of a CUDA or an OpenCL device."""
    return hasattr(array, "__cuda_array_interface__") or _is_of_pyopencl(array)


def part_of_array(array: Any) -> Part:  # noqa: ANN401  # what is on a device
    """Return where an array lies on its device.

    Raises:
        NotContiguousError: It has gaps.
        ValueError: A PyOpenCL array has no queue.
        TypeError: A PyOpenCL array is over shared virtual memory.
    """
    return _opencl_part(array) if _is_of_pyopencl(array) else _cuda_part(array)


def _is_of_pyopencl(array: object) -> bool:
    arrays = sys.modules.get("pyopencl.array")
    return arrays is not None and isinstance(array, arrays.Array)


def _cuda_part(array: Any) -> Part:  # noqa: ANN401  # of CuPy, Numba, PyTorch
    import numpy as np

    from madl.backends.cuda.lent import CudaLent

    interface = array.__cuda_array_interface__
    shape, strides = interface["shape"], interface.get("strides")
    itemsize = np.dtype(interface["typestr"]).itemsize
    if strides is not None and not _has_no_gaps(shape, strides, itemsize):
        raise NotContiguousError(tuple(shape), tuple(strides))
    address, is_readonly = interface["data"]
    has_index = hasattr(array, "__dlpack_device__")
    index = array.__dlpack_device__()[1] if has_index else 0
    nbytes = math.prod(shape) * itemsize
    return Part(
        Foreign(array, interface.get("stream"), is_readonly=is_readonly),
        CountedBackend(cast("Any", CudaLent(index))),
        Reservation(address, nbytes, address),
        0,
        nbytes,
    )


def _has_no_gaps(shape: Any, strides: Any, itemsize: int) -> bool:  # noqa: ANN401  # sequences
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length == 0:
            return True
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _opencl_part(array: Any) -> Part:  # noqa: ANN401  # pyopencl has no types here
    import pyopencl as cl

    from madl.backends.opencl import OpenclBackend

    if not array.flags.c_contiguous:
        raise NotContiguousError(array.shape, array.strides)
    if array.queue is None:
        raise ValueError(
            "the PyOpenCL array has no queue. Try: array.with_queue(queue)"
        )
    native = array.base_data
    if native is not None and not isinstance(native, cl.MemoryObjectHolder):
        raise TypeError(
            f"the PyOpenCL array is over {type(native).__name__}, no buffer. Try: the "
            "memory under it, madl.integrations.pyopencl.memory_of(array)"
        )
    return Part(
        Foreign(array, array.queue, is_readonly=False),
        CountedBackend(OpenclBackend(array.queue)),
        Reservation(native, array.offset + array.nbytes, None),
        array.offset,
        array.nbytes,
    )
