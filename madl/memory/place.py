"""Address resolution: the arena and offset of a memory, whole or a slice."""

import weakref
from typing import Any, NamedTuple, Protocol

from madl.backends.protocol import Backend, Capability, Reservation
from madl.errors import FreedMemoryError, MissingCapabilityError
from madl.hotpath import HotArena, Memory

# Of the flags' values: an & of two flags costs more than a small copy.
HOST = Capability.HOST_ACCESS._value_
_HOST_OR_STREAMS = HOST | Capability.STREAM_ORDERED._value_

_slices: set["weakref.ref[Slice]"] = set()
"""Every slice that lives. The set forgets each by itself, without Python code: a signal
handler that raised in there would leave one for ever."""


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
    part = memory._root  # read once: a free by another thread may clear it
    while isinstance(part, Slice):
        memory = part.parent
        part = memory._root
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
    placed = memory._place()
    if placed is not None:
        return Place(placed[0], placed[1])
    part = memory._root
    if isinstance(part, Slice):
        arena, offset = locate(part.parent, use)
        check_inside(memory, part.start, part.parent._nbytes)
        return Place(arena, offset + part.start)
    raise FreedMemoryError(memory._pool.device, memory._nbytes, use)


def check_inside(memory: Memory, start: int, nbytes: int) -> None:
    """Raise for a slice that ends beyond its memory."""
    if start + memory._nbytes > nbytes:
        raise ValueError(
            f"{memory._pool.device}: a slice ends at byte {start + memory._nbytes}, and"
            f" its memory was resized to {nbytes} bytes while it was cut; cut another"
        )


class Part(NamedTuple):
    """A range of a device's memory, for copies."""

    holder: Any
    """The ``Memory`` that it belongs to, or another library's array, by its stream."""
    backend: Backend
    reservation: Reservation
    offset: int
    nbytes: int
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
    value: int = memory._pool.capabilities._value_
    return value & _HOST_OR_STREAMS == HOST


def host_address(memory: Memory, use: str) -> int:
    """Return the address at which the CPU can reach a memory.

    Raises:
        MissingCapabilityError: It cannot.
    """
    placed = memory._place()
    arena, offset = locate(memory, use) if placed is None else placed[:2]
    if arena is None:
        return 0
    if not memory._pool.capabilities._value_ & HOST:
        raise MissingCapabilityError(
            memory._pool.device,
            f"host access, which {use} needs",
            "a device that the CPU can reach, such as 'cpu'",
        )
    assert arena.address is not None, "HOST_ACCESS implies addresses"
    return arena.address + offset
