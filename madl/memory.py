"""What a ``Memory`` does besides being allocated and freed.

Each function stands behind the method of the same name. Host views share one *root*,
the object at the end of every view's chain of owners: it keeps the block, so the
block goes back to its pool when the last view dies, whatever was freed before.
"""

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from madl import hotpath
from madl.backends.protocol import Capability
from madl.errors import FreedMemoryError, MissingCapabilityError, NotContiguousError
from madl.hotpath import HotArena, Memory
from madl.sizes import parse_nbytes

if TYPE_CHECKING:
    import numpy as np

_WIDEST = ctypes.c_ubyte * sys.maxsize
"""One array type for all sizes: ctypes keeps every type it makes for ever."""


class Root(_WIDEST):  # type: ignore[misc,valid-type]  # ctypes array types are made at run time
    """Holds the handle that keeps a block live for the views made from it."""

    keeper: Memory


_REFERENCES_WITHOUT_VIEWS = 3
"""To a root: the handle's, a local variable's, and getrefcount's own argument."""


class Slice(NamedTuple):
    """What ``memory[a:b]`` was cut from."""

    parent: Memory
    start: int


class Place(NamedTuple):
    """Where a memory lies. Without bytes there is no arena."""

    arena: HotArena | None
    offset: int


def locate(memory: Memory, use: str) -> Place:
    """Return where a memory lies.

    Raises:
        FreedMemoryError: It was freed; ``use`` is what the caller wanted to do.
    """
    placed = memory._place()
    if placed is not None:
        return Place(placed[0], placed[1])
    if isinstance(memory._root, Slice):
        arena, offset = locate(memory._root.parent, use)
        return Place(arena, offset + memory._root.start)
    raise FreedMemoryError(memory._pool.device, memory._nbytes, use)


def host_address(memory: Memory, use: str) -> int:
    """Return the address at which the CPU can reach a memory.

    Raises:
        MissingCapabilityError: It cannot.
    """
    arena, offset = locate(memory, use)
    if arena is None:
        return 0
    if not memory._pool.capabilities & Capability.HOST_ACCESS:
        raise MissingCapabilityError(
            memory._pool.device,
            f"host access, which {use} needs",
            "copy_to a memory of device 'cpu' first",
        )
    assert arena.address is not None, "HOST_ACCESS implies addresses"
    return arena.address + offset


def address(memory: Memory) -> int:
    """Return the absolute address; 0 for zero bytes."""
    arena, offset = locate(memory, "address")
    if arena is None:
        return 0
    if arena.address is None:
        raise MissingCapabilityError(
            memory._pool.device, "addresses", "mem.native, or another device"
        )
    return arena.address + offset


def native(memory: Memory) -> object:
    """Return what the device's API calls the memory."""
    return address(memory)


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
        "mem.tobytes() for its content, or madl.share(mem) between processes"
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
    return None


def view(memory: Memory) -> memoryview:
    """Return a writable view of the bytes, whose root keeps the block live."""
    if isinstance(memory._root, Slice):
        start = memory._root.start
        return view(memory._root.parent)[start : start + memory._nbytes]
    host = host_address(memory, "a view")
    if host == 0:
        return memoryview(bytearray())
    if memory._root is None:
        _attach_root(memory, host)
    return memoryview(memory._root)[: memory._nbytes].cast("B")


def _attach_root(memory: Memory, host: int) -> None:
    with memory._pool._lock:  # two roots would give the block back twice
        if memory._root is None:
            root = Root.from_address(host)
            root.keeper = memory._keeper()
            memory._root = root


def _detach_root(memory: Memory) -> None:
    """Make the handle the block's only keeper again, if no view lives."""
    root = memory._root
    if root is None:
        return
    if isinstance(root, Slice) or sys.getrefcount(root) > _REFERENCES_WITHOUT_VIEWS:
        what = "a slice" if isinstance(root, Slice) else "memory with live views"
        raise ValueError(f"{what} cannot be resized; drop the views, or allocate anew")
    root.keeper._forget_block()
    memory._root = None


def array_interface(memory: Memory) -> dict[str, Any]:
    """Return NumPy's array interface; the data is a buffer, so NumPy holds it."""
    return {
        "version": 3,
        "shape": (memory._nbytes,),
        "typestr": "|u1",
        "data": view(memory),
    }


def as_array(memory: Memory, dtype: Any, shape: Any) -> "np.ndarray[Any, Any]":  # noqa: ANN401  # what NumPy takes
    """Return a NumPy array over the memory, without a copy."""
    import numpy as np

    element = np.dtype(dtype)
    if element.hasobject:
        raise TypeError(f"dtype {element} holds Python objects, which need their own")
    if shape is None:
        shape = memory._nbytes // element.itemsize if element.itemsize else 0
    dimensions = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    needed = math.prod(dimensions) * element.itemsize
    if needed > memory._nbytes:
        raise ValueError(
            f"{dimensions} of {element} needs {needed} bytes, "
            f"the memory has {memory._nbytes}"
        )
    return np.ndarray(dimensions, element, buffer=view(memory))


def tobytes(memory: Memory) -> bytes:
    """Return a copy of the content."""
    return bytes(view(memory))


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
    return memory._pool._slice_of(Slice(memory, start), max(stop - start, 0))


def bytes_of(source: Any) -> memoryview:  # noqa: ANN401  # any buffer or Memory
    """Return the bytes of a ``Memory`` or of any C-contiguous buffer.

    Raises:
        NotContiguousError: The buffer has gaps.
    """
    if isinstance(source, Memory):
        return view(source)
    buffer = memoryview(source)
    if not buffer.c_contiguous:
        raise NotContiguousError(buffer.shape or (), buffer.strides or ())
    return buffer.cast("B") if buffer.nbytes else memoryview(bytearray())


def copy(destination: Any, source: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy the bytes of ``source`` to the start of ``destination``.

    Args:
        destination: A ``Memory``, or anything with a writable buffer.
        source: A ``Memory``, or anything with a buffer.
        stream: Where the copy is queued. Without one it is complete on return.

    Raises:
        ValueError: ``source`` is larger, or ``destination`` is read-only.
        NotContiguousError: One of them has gaps.
        MissingCapabilityError: A stream was given for host memory.

    Complexity: O(bytes). Overlapping ranges are copied as if through a third place.
    """
    if stream is not None:
        owner = destination if isinstance(destination, Memory) else source
        device = owner._pool.device if isinstance(owner, Memory) else "cpu"
        raise MissingCapabilityError(device, "streams", "copy without stream=")
    to, of = bytes_of(destination), bytes_of(source)
    if of.nbytes > to.nbytes:
        raise ValueError(
            f"cannot copy {of.nbytes} bytes into {to.nbytes}; "
            "copy a slice of the source, or allocate a larger destination"
        )
    if to.readonly:
        raise ValueError("cannot copy into a read-only buffer")
    to[: of.nbytes] = of


def copy_from(memory: Memory, source: Any, stream: object) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy the bytes of ``source`` to the start of the memory."""
    copy(memory, source, stream=stream)


def copy_to(memory: Memory, destination: Any, stream: object) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy all bytes to the start of ``destination``."""
    copy(destination, memory, stream=stream)


def fill(memory: Memory, value: int) -> None:
    """Set every byte."""
    byte = parse_nbytes(value, name="value")
    if byte > 255:
        raise ValueError(f"value must be a byte, 0 to 255, got {byte}")
    host = host_address(memory, "fill()")
    if host:
        ctypes.memset(host, byte, memory._nbytes)


def resize(memory: Memory, nbytes: int | str) -> None:
    """Change ``nbytes``, in place where the block is large enough or next to free."""
    wanted = parse_nbytes(nbytes)
    locate(memory, "resize()")
    _detach_root(memory)
    moved = memory._pool.allocate(wanted)
    try:
        kept = min(wanted, memory._nbytes)
        if kept:
            ctypes.memmove(
                host_address(moved, "resize()"), host_address(memory, "resize()"), kept
            )
    except MissingCapabilityError:
        moved.free()
        raise
    memory._exchange(moved)
    moved.free()


def record_stream(memory: Memory, stream: object) -> None:
    """Refuse: no device of this release is stream-ordered."""
    locate(memory, "record_stream()")
    raise MissingCapabilityError(
        memory._pool.device, "streams", f"leave out record_stream({stream!r})"
    )


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
        "cut": cut,
        "device": lambda memory: memory._pool.device,
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
        "tobytes": tobytes,
    }
)
