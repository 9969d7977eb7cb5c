"""Translation of pyopencl's errors to those of madl, with OpenCL's error names."""

import contextlib
from collections.abc import Iterator
from typing import Any

from madl.errors import (
    BackendCallError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.sizes import format_nbytes

_MEMORY_CODES = frozenset((-4, -6))
"""CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY."""

_OUT_OF_RESOURCES = -5
"""Out of memory from a call that allocates; from others, many drivers' word for a
kernel that went wrong."""

_INVALID_BUFFER_SIZE = -61

_NAMES = {"create_buffer": "clCreateBuffer"}  # pyopencl's names that are not OpenCL's


@contextlib.contextmanager
def translated(
    device: str, action: str, *, allocating: int | None = None
) -> Iterator[None]:
    """Raise madl's errors for those of pyopencl.

    Args:
        device: Whose calls they are.
        action: What they are for, as in ``"copy 8 bytes"``.
        allocating: Bytes that are being taken; ``None`` when none are.
    """
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        raise translation(error, device, action, allocating=allocating) from error


def translation(
    error: Any,  # noqa: ANN401  # pyopencl has no types here
    device: str,
    action: str,
    *,
    allocating: int | None = None,
) -> OutOfMemoryError | BackendCallError:
    """Return madl's error for one of pyopencl; as for ``translated``."""
    import pyopencl as cl

    function = _NAMES.get(error.routine, error.routine)
    text = f"CL_{cl.status_code.to_string(error.code)}"
    if detail := str(error).partition(" - ")[2].strip():
        text = f"{text}: {detail}"
    native = NativeFailure(function, error.code, text)
    is_out_of_memory = native.code in _MEMORY_CODES or (
        native.code == _OUT_OF_RESOURCES and allocating is not None
    )
    if is_out_of_memory:
        report = OutOfMemoryReport(device, allocating or 0, native=native)
        return OutOfMemoryError(report)
    return BackendCallError(device, action, native)


def too_large(
    device: str, function: str, nbytes: int, largest_nbytes: int
) -> OutOfMemoryError:
    """Return the error for more than one piece of memory can have."""
    text = (
        "CL_INVALID_BUFFER_SIZE: one piece has at most "
        f"{format_nbytes(largest_nbytes)}, CL_DEVICE_MAX_MEM_ALLOC_SIZE"
    )
    native = NativeFailure(function, _INVALID_BUFFER_SIZE, text)
    return OutOfMemoryError(OutOfMemoryReport(device, nbytes, native=native))
