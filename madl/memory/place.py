"""Where a memory lies, be it whole or a slice; and pins that keep it there."""

import sys
import weakref
from typing import Any, NamedTuple, Protocol, Self

from madl.backends.protocol import Backend, Capability, Reservation
from madl.errors import FreedMemoryError, MissingCapabilityError
from madl.hotpath import (
    HotArena,
    Memory,
    Root,
    detach,
    keep_by,
    lane_of,
    place_of,
    pool_of,
    root_of,
)

# Of the flags' values: an & of two flags costs more than a small copy.
HOST = Capability.HOST_ACCESS._value_
_HOST_OR_STREAMS = HOST | Capability.STREAM_ORDERED._value_

_slices: set["weakref.ref[Slice]"] = set()
"""Every slice that lives. The set forgets each without Python code, in which a signal
handler could raise and leave one for ever."""


class Slice:
    """What ``memory[a:b]`` was cut from."""

    __slots__ = ("__weakref__", "parent", "start")

    def __init__(self, parent: Memory, start: int) -> None:
        self.parent = parent
        self.start = start
        _slices.add(weakref.ref(self, _slices.discard))


def has_slices(memory: Memory) -> bool:
    """Return whether any slice of the memory lives."""
    return any(
        (part := reference()) is not None and part.parent is memory
        for reference in list(_slices)
    )


def uncut(memory: Memory) -> Memory:
    """Return what a slice was cut from in the end; of any other memory itself."""
    part = root_of(memory)  # read once: a free by another thread takes it away
    while isinstance(part, Slice):
        memory = part.parent
        part = root_of(memory)
    return memory


class Place(NamedTuple):
    """Where a memory lies. Without bytes there is no arena."""

    arena: HotArena | None
    offset: int


def locate(memory: Memory, use: str) -> Place:
    """Return where a memory lies.

    Raises:
        FreedMemoryError: It was freed; ``use`` is what the caller wanted to do.
        ValueError: It is a slice of what was resized while it was cut.
    """
    placed = place_of(memory)
    if placed is not None:
        return Place(placed[0], placed[1])
    part = root_of(memory)
    if isinstance(part, Slice):
        arena, offset = locate(part.parent, use)
        check_inside(memory, part.start, part.parent.nbytes)
        return Place(arena, offset + part.start)
    raise FreedMemoryError(pool_of(memory).device, memory.nbytes, use)


def check_inside(memory: Memory, start: int, nbytes: int) -> None:
    """Raise for a slice that ends beyond its memory."""
    if start + memory.nbytes > nbytes:
        raise ValueError(
            f"{pool_of(memory).device}: a slice ends at byte {start + memory.nbytes}, "
            f"and its memory was resized to {nbytes} bytes while it was cut; "
            "cut another"
        )


def backend_of(memory: Memory) -> Backend:
    """Return the backend whose device a memory is on."""
    return lane_of(pool_of(memory)).backend


class Part(NamedTuple):
    """A range of a device's memory, for copies."""

    holder: Any
    """The ``Memory`` that it belongs to, or another library's array, by its stream."""
    backend: Backend
    reservation: Reservation
    offset: int
    nbytes: int
    readonly: bool = False
    """As of a memoryview: of an array that must not be written."""
    kept: object = None
    """A root that keeps the block until the copy is done, also when it is freed."""

    def cut(self, start: int, stop: int) -> "Part":
        """Return a part of it."""
        return self._replace(offset=self.offset + start, nbytes=stop - start)


class _Reserved(Protocol):
    """What an arena is, seen from here."""

    reservation: Reservation
    front_nbytes: int


def reserved_place(arena: HotArena, offset: int) -> tuple[Reservation, int]:
    """Return the reservation behind an arena, and where in it a user's bytes start."""
    reserved: _Reserved = arena  # type: ignore[assignment]  # what a pool's arena has
    return reserved.reservation, offset + reserved.front_nbytes


def is_plain_host(memory: Memory) -> bool:
    """Return whether the CPU, and no queued work, reads and writes a memory."""
    value: int = pool_of(memory).capabilities._value_
    return value & _HOST_OR_STREAMS == HOST


def host_address(memory: Memory, use: str) -> int:
    """Return the address at which the CPU can reach a memory.

    Raises:
        MissingCapabilityError: It cannot.
    """
    placed = place_of(memory)
    arena, offset = locate(memory, use) if placed is None else placed[:2]
    if arena is None:
        return 0
    if not pool_of(memory).capabilities._value_ & HOST:
        raise MissingCapabilityError(
            pool_of(memory).device,
            f"host access, which {use} needs",
            "a device that the CPU can reach, such as 'cpu'",
        )
    assert arena.address is not None, "HOST_ACCESS implies addresses"
    return arena.address + offset


def pin(memory: Memory, use: str) -> Root | None:
    """Return a root that keeps a block as long as it lives; ``None`` without bytes.

    Raises:
        FreedMemoryError: The memory was freed; ``use`` is what the caller wanted to do.
    """
    memory = uncut(memory)
    root: Root | None = root_of(memory)
    while root is None:
        placed = place_of(memory)
        arena, offset = locate(memory, use) if placed is None else placed[:2]
        if arena is None:
            return None
        nbytes = memory.nbytes
        shown = 0, 0  # the CPU sees nothing of it
        if pool_of(memory).capabilities._value_ & HOST and nbytes <= sys.maxsize:
            assert arena.address is not None, "HOST_ACCESS implies addresses"
            shown = arena.address + offset, nbytes
        root = keep_by(memory, Root.over(*shown))
    return root


class Pinned:
    """Keeps the block of a memory, and its size, for the length of a ``with`` block.

    A signal handler or another thread may free or resize the memory while a call reads
    or writes it by address: the free then waits for the end, and the resize is refused.
    """

    __slots__ = ("_memory", "_root", "_was_viewed")

    def __init__(self, memory: Memory, use: str) -> None:
        self._memory = memory = uncut(memory)
        root: Root | None = root_of(memory)
        self._was_viewed = root is not None
        self._root = pin(memory, use) if root is None else root

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._root = None
        if not self._was_viewed:  # what views have left behind makes the next one cheap
            detach(self._memory)
