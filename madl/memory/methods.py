"""What a ``Memory`` does besides being allocated and freed.

Each function stands behind the method of the same name; those that make views are in
``views``.
"""

import ctypes
import operator
from typing import Any, cast

from madl import hotpath
from madl.backends.protocol import Capability, ViewBackend
from madl.backends.registry import is_on_device
from madl.errors import FreedMemoryError, MissingCapabilityError
from madl.hotpath import Memory
from madl.memory import copies as transfer
from madl.memory.copies import bytes_of
from madl.memory.interop import cuda_array_interface, dlpack, dlpack_device
from madl.memory.pin import Held
from madl.memory.place import (
    Slice,
    has_slices,
    host_address,
    is_plain_host,
    locate,
    reserved_place,
    uncut,
)
from madl.memory.views import array_interface, as_array, has_views, view
from madl.sizes import parse_nbytes

# Of the flag's value: an & of two flags costs more than a view.
_VIEW = Capability.VIEW._value_


def address(memory: Memory) -> int:
    """Return the absolute address; 0 for zero bytes."""
    arena, offset = locate(memory, "address")
    if arena is None:
        return 0
    if arena.address is None:
        raise MissingCapabilityError(memory._pool.device, "addresses", "another device")
    return arena.address + offset


def native(memory: Memory) -> object:
    """Return what the device's API calls the memory; ``None`` for a view of nothing."""
    if not memory._pool.capabilities._value_ & _VIEW:
        return address(memory)
    arena, offset = locate(memory, "native")
    if arena is None:
        return None
    backend = cast("ViewBackend", memory._pool._backend.backend)
    return backend.view(*reserved_place(arena, offset), memory._nbytes)


def capacity(memory: Memory) -> int:
    """Return the bytes that the memory takes in its arena."""
    placed = memory._place()
    if placed is not None:
        return placed[2]
    locate(memory, "capacity")
    return memory._nbytes


def is_freed(memory: Memory) -> bool:
    """Return whether the memory, or what it was cut from, was freed."""
    if isinstance(memory._root, Slice):
        return is_freed(memory._root.parent)
    return memory._place() is None


def refuse_free(memory: Memory) -> Exception:
    """Return the error for a free that must not happen."""
    if isinstance(memory._root, Slice):
        return ValueError(
            f"{memory._pool.device}: a slice of {memory._nbytes} bytes cannot be "
            "freed; free the memory that it was cut from"
        )
    return FreedMemoryError(memory._pool.device, memory._nbytes, "free()")


def refuse_pickle(memory: Memory) -> TypeError:
    """Return the error for an attempt to pickle or copy a handle."""
    return TypeError(
        f"a Memory of {memory._pool.device} cannot be pickled or copied; pass "
        "mem.tobytes() for its content, or allocate it with device='shared' and pass "
        "madl.share(mem)"
    )


def tag(memory: Memory) -> str | None:
    """Return the tag that the memory was allocated under."""
    if isinstance(memory._root, Slice):
        return tag(memory._root.parent)
    locate(memory, "tag")
    watch = memory._watch()
    return None if watch is None else watch.tag


def stream(memory: Memory) -> object:
    """Return the stream that owns the memory."""
    locate(memory, "stream")
    return uncut(memory)._pool._stream


def cut(memory: Memory, part: slice) -> Memory:
    """Return a view of a part of the memory; it keeps its parent."""
    if not isinstance(part, slice):
        raise TypeError(
            f"a Memory is cut with a slice such as mem[0:64], got {part!r}; "
            "for single bytes use mem.memoryview()"
        )
    start, stop, step = part.indices(memory._nbytes)
    if step != 1:
        raise ValueError(f"a Memory is cut in steps of 1 byte, got {step}")
    locate(memory, "a slice")
    whole = memory
    if isinstance(memory._root, Slice):  # a slice of a slice is cut from the whole
        whole, start, stop = (
            memory._root.parent,
            memory._root.start + start,
            memory._root.start + stop,
        )
    return memory._pool._slice_of(Slice(whole, start), max(stop - start, 0))


def copy(destination: Any, source: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy the bytes of ``source`` to the start of ``destination``.

    Args:
        destination: A ``Memory``, or an array of any library: in host memory with a
            buffer, ``__array_interface__`` or ``__dlpack__``, on a CUDA device with
            ``__cuda_array_interface__``, or of PyOpenCL. Writable, without gaps.
        source: The same; it may be read-only.
        stream: Where the copy is queued. Without one it is complete on return.

    Raises:
        ValueError: ``source`` is larger, or ``destination`` is read-only.
        NotContiguousError: One of them has gaps.
        MissingCapabilityError: A stream was given for host memory, or for two devices.

    Complexity: O(bytes). Overlapping ranges are copied as if through a third place.
    Between two devices the bytes go through the host.
    """
    if not (_is_host(destination) and _is_host(source)):
        transfer.copy(destination, source, stream)
        return
    if stream is not None:
        owner = destination if isinstance(destination, Memory) else source
        raise transfer.no_streams(owner)
    to, of = bytes_of(destination), bytes_of(source)
    transfer.check_room(of.nbytes, to.nbytes, is_readonly=to.readonly)
    to[: of.nbytes] = of


def _is_host(side: Any) -> bool:  # noqa: ANN401  # any array or Memory
    return is_plain_host(side) if isinstance(side, Memory) else not is_on_device(side)


def copy_from(memory: Memory, source: Any, stream: object) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy the bytes of ``source`` to the start of the memory."""
    copy(memory, source, stream=stream)


def copy_to(memory: Memory, destination: Any, stream: object) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy all bytes to the start of ``destination``."""
    copy(destination, memory, stream=stream)


def fill(memory: Memory, value: int) -> None:
    """Set every byte."""
    # First: an __index__ may free the memory.
    byte = value if type(value) is int else _index(value)
    if not 0 <= byte <= 255:
        raise ValueError(f"value must be a byte, 0 to 255, got {byte}")
    with Held(memory, "fill()"):
        if is_plain_host(memory) or not _can(memory, Capability.FILL):
            host = host_address(memory, "fill()")
            if host:
                ctypes.memset(host, byte, memory._nbytes)
        elif locate(memory, "fill()").arena is not None and memory._nbytes:
            transfer.fill(memory, byte)


def _index(value: Any) -> int:  # noqa: ANN401  # whatever a user passes
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"value must be an int, 0 to 255, got {value!r} ({type(value).__name__})"
        )
    return operator.index(value)


def _can(memory: Memory, capability: Capability) -> bool:
    return bool(memory._pool.capabilities & capability)


def resize(memory: Memory, nbytes: int | str) -> None:
    """Move the content to a new block of ``nbytes``; both are live meanwhile."""
    wanted = parse_nbytes(nbytes)
    locate(memory, "resize()")
    _refuse_to_move(memory)
    copies = not is_plain_host(memory) and _can(memory, Capability.COPY)
    if wanted and memory._nbytes and not copies:
        host_address(memory, "resize()")
    moved = memory._pool.allocate(wanted, tag=tag(memory))
    try:
        # Again: a reclaimer may have looked at the memory by now, or freed it.
        locate(memory, "resize()")
        _refuse_to_move(memory)
        with Held(memory, "resize()"):
            arena, offset = locate(memory, "resize()")
            kept = min(wanted, memory._nbytes)
            if kept and copies:
                transfer.copy_block(moved, memory, kept)
            elif kept:
                source = host_address(memory, "resize()")
                ctypes.memmove(host_address(moved, "resize()"), source, kept)
        # Not where it was freed, moved or looked at since.
        if not memory._exchange(moved, arena, offset):
            locate(memory, "resize()")
            raise _somebody_looks(memory)
    except BaseException:
        moved.free()
        raise
    moved.free()


def _refuse_to_move(memory: Memory) -> None:
    """Raise for memory that somebody else looks at."""
    if isinstance(memory._root, Slice):
        raise ValueError(
            f"{memory._pool.device}: a slice of {memory._nbytes} bytes cannot be "
            "resized; cut another, or resize the memory that it was cut from"
        )
    if has_slices(memory) or has_views(memory):
        raise _somebody_looks(memory)


def _somebody_looks(memory: Memory) -> ValueError:
    return ValueError(
        f"{memory._pool.device}: memory of {memory._nbytes} bytes cannot be "
        "resized while arrays, memoryviews or slices of it live; drop them first"
    )


def record_stream(memory: Memory, stream: object) -> None:
    """Note that queued work of another stream uses the memory."""
    locate(memory, "record_stream()")
    if Capability.STREAM_ORDERED not in memory._pool.capabilities:
        raise MissingCapabilityError(
            memory._pool.device, "streams", f"leave out record_stream({stream!r})"
        )
    memory = uncut(memory)
    memory._pool._record_stream(memory, stream)


def describe(memory: Memory) -> str:
    """Return the text that ``repr`` shows."""
    state = "freed" if is_freed(memory) else f"{memory._nbytes} bytes"
    return f"<madl.Memory on {memory._pool.device}: {state}>"


hotpath.register_cold(
    {
        "address": address,
        "array_interface": array_interface,
        "as_array": as_array,
        "capacity": capacity,
        "copy_from": copy_from,
        "copy_to": copy_to,
        "cuda_array_interface": cuda_array_interface,
        "cut": cut,
        "device": lambda memory: memory._pool.device,
        "dlpack": dlpack,
        "dlpack_device": dlpack_device,
        "fill": fill,
        "is_freed": is_freed,
        "memoryview": view,
        "native": native,
        "record_stream": record_stream,
        "refuse_free": refuse_free,
        "refuse_pickle": refuse_pickle,
        "repr": describe,
        "resize": resize,
        "stream": stream,
        "tag": tag,
        "tobytes": transfer.tobytes,
    }
)
