"""Import of other libraries' host arrays as bytes, without a copy.

An array is recognised by what it offers, so that no library is imported for it: a
buffer, NumPy's ``__array_interface__``, or DLPack.
"""

import re
from typing import Any

from madl.errors import NotContiguousError

_ON_HOST = (1, 3, 11)
"""DLPack's numbers of what the CPU reaches: host memory, pinned for CUDA or ROCm."""

_NAMES = re.compile(":[^:]*:")
"""Of fields, in a buffer's format."""


def bytes_of_array(array: Any) -> memoryview:  # noqa: ANN401  # whatever a user copies
    """Return the bytes of an array in host memory.

    Raises:
        NotContiguousError: It has gaps.
        TypeError: It is no array, lies elsewhere, or holds Python objects.
    """
    try:
        buffer = memoryview(array)
    except (TypeError, ValueError):  # no buffer, or elements that buffers do not know
        return _bytes_through_numpy(array)
    if "O" in _NAMES.sub("", buffer.format):  # a copy would leave them uncounted
        raise _objects(getattr(array, "dtype", buffer.format))
    if not buffer.c_contiguous:
        raise NotContiguousError(buffer.shape or (), buffer.strides or ())
    if not buffer.nbytes:
        return memoryview(bytearray())
    try:
        return buffer.cast("B")
    except (TypeError, ValueError):  # of structures, or of bytes in another order
        return _bytes_through_numpy(array)


def _bytes_through_numpy(array: Any) -> memoryview:  # noqa: ANN401  # whatever a user copies
    import numpy as np

    if hasattr(array, "__array_interface__") or isinstance(array, memoryview):
        found = np.asarray(array)
    elif hasattr(array, "__dlpack__") and array.__dlpack_device__()[0] in _ON_HOST:
        try:
            found = np.from_dlpack(array)
        except (BufferError, RuntimeError) as error:  # of its type, or of its gradient
            raise TypeError(
                f"NumPy cannot look at a {_name_of(array)}: {error} "
                "Try: its bytes, such as tensor.detach().view(torch.uint8)"
            ) from error
    else:
        raise TypeError(
            "madl.copy takes a Memory, or an array whose bytes the CPU reaches, "
            f"got a {_name_of(array)}"
        )
    if found.dtype.hasobject:
        raise _objects(found.dtype)
    if not found.flags.c_contiguous:
        raise NotContiguousError(found.shape, found.strides)
    return found.reshape(-1).view(np.uint8).data


def _objects(element: object) -> TypeError:
    return TypeError(f"an array of {element} holds Python objects, not bytes")


def _name_of(array: object) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"
