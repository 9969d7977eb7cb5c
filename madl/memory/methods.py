"""The methods of ``Memory`` that are not hot, written once for both bodies.

They are attached to whichever class there is; ``hotpath.shared.Handle`` tells type
checkers of them.
"""

import ctypes
import operator
from collections.abc import Callable
from typing import Any, NoReturn, cast

from madl.backends.protocol import Capability, ViewBackend
from madl.errors import FreedMemoryError, MissingCapabilityError
from madl.hotpath import (
    Memory,
    attach,
    exchange,
    head_of,
    is_viewed,
    lane_of,
    place_of,
    pool_of,
    root_of,
    slice_of,
    watch_of,
)
from madl.hotpath.shared import special
from madl.memory import copies as transfer
from madl.memory import interop, views
from madl.memory.copies import copy as copy
from madl.memory.place import (
    Pinned,
    Slice,
    backend_of,
    has_slices,
    host_address,
    is_plain_host,
    locate,
    reserved_place,
    uncut,
)
from madl.memory.views import view
from madl.sizes import parse_nbytes

# Of the flag's value: an & of two flags costs more than a view.
_VIEW = Capability.VIEW._value_


def address(memory: Memory) -> int:
    """Where the memory starts; 0 for zero bytes. Not covered by ``free``.

    Raises:
        MissingCapabilityError: The device has no addresses.
    """
    arena, offset = locate(memory, "address")
    if arena is None:
        return 0
    if arena.address is None:
        raise MissingCapabilityError(
            pool_of(memory).device, "addresses", "another device"
        )
    return arena.address + offset


def native(memory: Memory) -> object:
    """What the device's own API calls this memory, an address or a ``cl_mem``.

    ``None`` for no bytes, be it memory or a slice of it.
    """
    arena, offset = locate(memory, "native")
    if arena is None or not memory.nbytes:
        return None
    if not pool_of(memory).capabilities._value_ & _VIEW:
        return address(memory)
    backend = cast("ViewBackend", backend_of(memory))
    return backend.view(*reserved_place(arena, offset), memory.nbytes)


def capacity(memory: Memory) -> int:
    """Bytes given, ``nbytes`` rounded up to the pool's granularity."""
    placed = place_of(memory)
    if placed is not None:
        return placed[2]
    locate(memory, "capacity")
    return memory.nbytes


def is_freed(memory: Memory) -> bool:
    """Whether ``free()`` has been called, on it or on what it was cut from."""
    return place_of(uncut(memory)) is None


def refuse_free(memory: Memory) -> Exception:
    """Return the error for a free that must not happen."""
    if isinstance(root_of(memory), Slice):
        return ValueError(
            f"{pool_of(memory).device}: a slice of {memory.nbytes} bytes cannot be "
            "freed; free the memory that it was cut from"
        )
    return FreedMemoryError(pool_of(memory).device, memory.nbytes, "free()")


def refuse_pickle(memory: Memory) -> TypeError:
    """Return the error for an attempt to pickle or copy a handle."""
    return TypeError(
        f"a Memory of {pool_of(memory).device} cannot be pickled or copied; pass "
        "mem.tobytes() for its content, or allocate it with device='shared' and pass "
        "madl.share(mem)"
    )


def tag(memory: Memory) -> str | None:
    """The tag that the memory was allocated under."""
    memory = uncut(memory)
    locate(memory, "tag")
    watch = watch_of(memory)
    return None if watch is None else watch.tag


def stream(memory: Memory) -> object:
    """The stream that owns the memory; ``None`` on devices without streams."""
    locate(memory, "stream")
    return lane_of(pool_of(uncut(memory))).stream


def cut(memory: Memory, part: slice) -> Memory:
    """Return a view of a part of the memory; it keeps its parent."""
    if not isinstance(part, slice):
        raise TypeError(
            f"a Memory is cut with a slice such as mem[0:64], got {part!r}; "
            "for single bytes use mem.memoryview()"
        )
    start, stop, step = part.indices(memory.nbytes)
    if step != 1:
        raise ValueError(f"a Memory is cut in steps of 1 byte, got {step}")
    locate(memory, "a slice")
    whole, root = memory, root_of(memory)
    if isinstance(root, Slice):  # a slice of a slice is cut from the whole
        whole, start, stop = root.parent, root.start + start, root.start + stop
    return slice_of(pool_of(memory), Slice(whole, start), max(stop - start, 0))


def copy_from(  # noqa: D417  # a method, whose self is the memory
    memory: Memory,
    source: Any,  # noqa: ANN401  # any buffer or Memory
    *,
    stream: object = None,
) -> None:
    """Copy the bytes of ``source`` to the start of this memory.

    Args:
        source: A ``Memory``, or anything with a C-contiguous buffer.
        stream: Where the copy is queued. Without one it is complete on return.

    Raises:
        ValueError: ``source`` is larger. Nothing is copied.
        NotContiguousError: ``source`` has gaps.
    """
    copy(memory, source, stream=stream)


def copy_to(  # noqa: D417  # as copy_from
    memory: Memory,
    destination: Any,  # noqa: ANN401  # any buffer or Memory
    *,
    stream: object = None,
) -> None:
    """Copy all bytes to the start of ``destination``.

    Args:
        destination: A ``Memory``, or anything with a writable, C-contiguous buffer.
        stream: Where the copy is queued. Without one it is complete on return.

    Raises:
        ValueError: ``destination`` is smaller. Nothing is copied.
        NotContiguousError: ``destination`` has gaps.
    """
    copy(destination, memory, stream=stream)


def fill(memory: Memory, value: int = 0) -> None:
    """Set every byte to ``value``, 0 to 255."""
    # Before the memory is pinned: an __index__ may free it.
    byte = value if type(value) is int else _index(value)
    if not 0 <= byte <= 255:
        raise ValueError(f"value must be a byte, 0 to 255, got {byte}")
    with Pinned(memory, "fill()"):
        if is_plain_host(memory) or not _can(memory, Capability.FILL):
            host = host_address(memory, "fill()")
            if host:
                ctypes.memset(host, byte, memory.nbytes)
        elif locate(memory, "fill()").arena is not None and memory.nbytes:
            transfer.fill(memory, byte)


def _index(value: Any) -> int:  # noqa: ANN401  # whatever a user passes
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"value must be an int, 0 to 255, got {value!r} ({type(value).__name__})"
        )
    return operator.index(value)


def _can(memory: Memory, capability: Capability) -> bool:
    return bool(pool_of(memory).capabilities & capability)


def resize(memory: Memory, nbytes: int | str) -> None:
    """Change ``nbytes``; the content up to the smaller size stays.

    The memory may move. Nothing changes on failure. Both blocks are live while it is
    copied.

    Raises:
        ValueError: It is a slice, or views of it live.
        OutOfMemoryError: As for ``allocate``.
    """
    wanted = parse_nbytes(nbytes)
    locate(memory, "resize()")
    _refuse_to_move(memory)
    copies = not is_plain_host(memory) and _can(memory, Capability.COPY)
    if wanted and memory.nbytes and not copies:
        host_address(memory, "resize()")
    moved = pool_of(memory).allocate(wanted, tag=tag(memory))
    try:
        # Again: a reclaimer may have looked at the memory by now, or freed it.
        locate(memory, "resize()")
        _refuse_to_move(memory)
        with Pinned(memory, "resize()"):
            arena, offset = locate(memory, "resize()")
            kept = min(wanted, memory.nbytes)
            if kept and copies:
                transfer.copy_block(moved, memory, kept)
            elif kept:
                source = host_address(memory, "resize()")
                ctypes.memmove(host_address(moved, "resize()"), source, kept)
        # Not where it was freed, moved or looked at since.
        if not exchange(memory, moved, arena, offset):
            locate(memory, "resize()")
            raise _is_viewed_error(memory)
    except BaseException:
        moved.free()
        raise
    moved.free()


def _refuse_to_move(memory: Memory) -> None:
    """Raise for memory that has views or slices, or is one."""
    if isinstance(root_of(memory), Slice):
        raise ValueError(
            f"{pool_of(memory).device}: a slice of {memory.nbytes} bytes cannot be "
            "resized; cut another, or resize the memory that it was cut from"
        )
    if has_slices(memory) or is_viewed(memory):
        raise _is_viewed_error(memory)


def _is_viewed_error(memory: Memory) -> ValueError:
    return ValueError(
        f"{pool_of(memory).device}: memory of {memory.nbytes} bytes cannot be "
        "resized while arrays, memoryviews or slices of it live; drop them first"
    )


def record_stream(memory: Memory, stream: object) -> None:
    """Say that queued work of another stream uses the memory.

    Raises:
        MissingCapabilityError: The device is not stream-ordered.
    """
    locate(memory, "record_stream()")
    if Capability.STREAM_ORDERED not in pool_of(memory).capabilities:
        raise MissingCapabilityError(
            pool_of(memory).device, "streams", f"leave out record_stream({stream!r})"
        )
    memory = uncut(memory)
    lane_of(pool_of(memory)).record_stream(memory, stream)


def describe(memory: Memory) -> str:
    """Return the text that ``repr`` shows."""
    state = "freed" if is_freed(memory) else f"{memory.nbytes} bytes"
    return f"<madl.Memory on {pool_of(memory).device}: {state}>"


def _memoryview(memory: Memory) -> memoryview:
    """Return a writable view of the bytes; it keeps the block live."""
    return view(memory)


def _device(memory: Memory) -> str:
    """The device's name, as in ``"cpu"``."""
    return pool_of(memory).device


def _property(name: str, function: Callable[[Memory], object]) -> property:
    made = property(function)
    # As a class does, so that errors tell the name.
    made.__set_name__(Memory, name)  # type: ignore[attr-defined]  # typeshed lacks it
    return made


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__, function.__qualname__ = name, f"Memory.{name}"
    return function


def _pool(memory: Memory) -> Any:  # noqa: ANN401  # the Pool
    """The pool that the memory came from."""
    return head_of(pool_of(memory))


def _refuse_pickle(memory: Memory, protocol: object) -> NoReturn:
    raise refuse_pickle(memory)


_PROPERTIES: dict[str, Callable[[Memory], object]] = {
    "__array_interface__": views.array_interface,
    "__cuda_array_interface__": interop.cuda_array_interface,
    "address": address,
    "capacity": capacity,
    "device": _device,
    "is_freed": is_freed,
    "native": native,
    "pool": _pool,
    "stream": stream,
    "tag": tag,
}
_METHODS: dict[str, Callable[..., object]] = {
    "__buffer__": lambda memory, flags: view(memory),
    "__dlpack__": interop.dlpack,
    "__dlpack_device__": interop.dlpack_device,
    "__getitem__": cut,
    "__len__": lambda memory: memory.nbytes,
    "__reduce_ex__": _refuse_pickle,
    "__repr__": describe,
    "as_array": views.as_array,
    "copy_from": copy_from,
    "copy_to": copy_to,
    "fill": fill,
    "memoryview": _memoryview,
    "record_stream": record_stream,
    "resize": resize,
    "tobytes": transfer.tobytes,
}
attach({name: _property(name, function) for name, function in _PROPERTIES.items()})
attach({name: _named(name, function) for name, function in _METHODS.items()})
special.update(
    as_array=views.as_array,
    cut=cut,
    memoryview=view,
    refuse_free=refuse_free,
    refuse_pickle=refuse_pickle,
    repr=describe,
)
