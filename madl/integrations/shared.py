"""Share memory with another process, without a copy.

A token stands for memory of device ``"shared"``. ``multiprocessing`` sends it: as an
argument of a ``Process``, through a queue or a pipe. What travels is a descriptor, so
a token is of no use to a process that it was not sent to.
"""

import os
from typing import cast

from madl.backends.protocol import Capability, Reservation, ShareBackend
from madl.backends.shared import SharedBackend
from madl.errors import AttachError, MissingCapabilityError
from madl.hotpath import Memory, pool_of, root_of
from madl.memory.place import Slice, locate, reserved_place
from madl.pool import Pool
from madl.pool.allocate import parts_of


class Token:
    """Stands for memory in other processes; made by ``madl.share``.

    It owns a reference to the memory, here and where it has arrived, beside the
    ``Memory`` itself. ``pickle`` alone will do only between processes that
    multiprocessing has related.
    """

    __slots__ = ("_offset", "_shared", "nbytes", "owner_pid")

    def __init__(
        self, shared: object, offset: int, nbytes: int, owner_pid: int
    ) -> None:
        self._shared = shared
        self._offset = offset
        self.nbytes = nbytes
        """Bytes of the memory."""
        self.owner_pid = owner_pid
        """The process that has shared it."""

    def attach(self) -> Memory:
        """Return the memory, here: the same bytes as in the process that shared it.

        It is freed like any other, and takes nothing from other processes then. It
        belongs to a pool of its own, ``memory.pool``, so that no statistics count the
        memory of others.

        Raises:
            AttachError: It was not sent to this process, or its sender has ended
                before it arrived.
        """
        # Closed before its memory is freed: the free unmaps it then, and keeps nothing.
        with Pool(_Attachment(self._shared, self._offset), debug=False) as pool:
            try:
                return pool.allocate(self.nbytes)
            except AttachError as error:  # it names what the block takes
                raise AttachError(error.device, self.nbytes, error.reason) from None

    def __reduce__(self) -> tuple[type["Token"], tuple[object, int, int, int]]:
        return Token, (self._shared, self._offset, self.nbytes, self.owner_pid)

    def __repr__(self) -> str:
        return f"<madl token: {self.nbytes} bytes of process {self.owner_pid}>"


def share(memory: Memory) -> Token:
    """Return a token, by which another process attaches the memory without a copy.

    Both see each other's writes, in no defined order: synchronize by a queue, a barrier
    or a lock. A block is never handed out again by its pool, shared or not, and the
    memory goes back to the system when the last process has let go of it.

    Args:
        memory: Of device ``"shared"``, whole.

    Raises:
        MissingCapabilityError: The device cannot share memory.
        ValueError: It is a slice.
        FreedMemoryError: It was freed.
    """
    if not isinstance(memory, Memory):
        raise TypeError(f"memory must be a Memory, got {type(memory).__name__}")
    arena, offset = locate(memory, "share()")
    if Capability.SHARE not in pool_of(memory).capabilities:
        raise MissingCapabilityError(
            pool_of(memory).device,
            "memory that other processes can attach",
            "allocate it with device='shared'",
        )
    if isinstance(root_of(memory), Slice):
        raise ValueError(
            f"{pool_of(memory).device}: a slice of {memory.nbytes} bytes cannot be "
            "shared; share the memory that it was cut from, and cut it where it is "
            "attached"
        )
    if arena is None:
        return Token(None, 0, 0, os.getpid())
    backend = cast("ShareBackend", parts_of(pool_of(memory)).backend.backend)
    reservation, start = reserved_place(arena, offset)
    return Token(backend.share(reservation), start, memory.nbytes, os.getpid())


class _Attachment(SharedBackend):
    """Has one reservation: what was sent."""

    def __init__(self, shared: object, offset: int) -> None:
        super().__init__()
        self._sent = [shared]
        self._offset = offset

    def reserve(self, nbytes: int) -> Reservation:
        """Map it."""
        reservation = self.attach(self._sent[0], self._offset, nbytes)
        self._sent.clear()  # the mapping owns the memory now; so would this
        return reservation
