"""A guard against a call of PoCL that ends the process.

``clEnqueueCopyBufferRect`` of PoCL reads memory at NULL where one side is a sub-buffer
(3.1; no version is known that does not). Blocks of a pool are sub-buffers, so programs
that copy rectangles would end as soon as madl is put under them.
"""

import functools
from typing import TYPE_CHECKING, Any

from madl.backends.opencl.devices import KIND, name_of
from madl.errors import MissingCapabilityError

if TYPE_CHECKING:
    import pyopencl as cl

PLATFORM = "Portable Computing Language"

_NAME = "_enqueue_copy_buffer_rect"  # what pyopencl.enqueue_copy calls


def guard_rectangles(device: "cl.Device") -> None:
    """Let pyopencl refuse rectangular copies of PoCL's sub-buffers, from now on.

    It has no hook, so its function is replaced, once, if the device is PoCL's.
    """
    if device.platform.name == PLATFORM:
        _replace_copy()


@functools.cache
def _replace_copy() -> None:
    import pyopencl

    native: Any = pyopencl._cl
    copy = getattr(native, _NAME)

    @functools.wraps(copy)
    def guarded(queue: Any, src: Any, dst: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # pyopencl's own
        if queue.device.platform.name == PLATFORM and (_is_part(src) or _is_part(dst)):
            raise MissingCapabilityError(
                name_of(queue.device, KIND),
                "rectangular copies of sub-buffers, as blocks of a pool are: PoCL's "
                "clEnqueueCopyBufferRect would end the process",
                "read the rectangle into an array of the host, and write it from there",
            )
        return copy(queue, src, dst, *args, **options)

    setattr(native, _NAME, guarded)


def _is_part(buffer: Any) -> bool:  # noqa: ANN401  # a memory object of pyopencl
    return buffer.associated_memobject is not None
