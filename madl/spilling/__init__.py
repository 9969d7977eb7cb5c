"""Spilling: move the content of unused memory out, when a pool runs out of memory."""

import os
import sys
import threading
import weakref
from typing import Literal, NoReturn

from madl.errors import MadlError
from madl.hotpath import Memory, Uses, detach, is_viewed, place_of
from madl.hotpath.reentrancy import living, try_lock
from madl.memory.place import has_slices, is_plain_host
from madl.pool import Pool
from madl.pool.reclaim import Freed
from madl.spilling.copies import Copy, FileCopy, HostCopy

PLACES = ("host", "file")

MOST_PASSES = 100
"""Scans of all members for one request, while other threads use them."""


class Spillable(Uses[Memory]):
    r"""A memory that may be spilled while it is not in use, and comes back when it is.

    >>> import madl
    >>> pool = madl.Pool("cpu", limit="4 MiB")
    >>> weights = madl.Spillable(pool.allocate("3 MiB"))
    >>> with weights as memory:
    ...     memory.fill(7)
    >>> other = pool.allocate("3 MiB")
    >>> weights.is_spilled
    True
    >>> other.free()
    >>> with weights as memory:
    ...     print(memory.tobytes()[:3])
    b'\x07\x07\x07'

    A pool that cannot place a request spills what was not used for the longest time,
    as one of its reclaimers. What is in a ``with`` block, and what arrays, memoryviews
    or slices look at, stays.

    Args:
        memory: Whole, no slice. It is used through ``with`` from now on, and freed by
            ``close()`` or with the last reference.
        to: ``"host"`` for host memory outside of any pool, ``"file"`` for a temporary
            file without a name. By default a file for host memory, else the host.
        directory: Where the file is; None for the system's own.
        priority: Among the reclaimers of the pool, as for ``Pool.on_out_of_memory``.

    Raises:
        ValueError: ``to`` is neither, a directory was given for the host, or the memory
            is a slice or was freed.

    ``with`` restores it first, and raises ``OutOfMemoryError`` where there is no room,
    ``OSError`` where its file cannot be read, ``ValueError`` where it was closed; in
    the first two cases it stays spilled.

    Thread-safe. A file is open for each memory that is spilled to one.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        to: Literal["host", "file"] | None = None,
        directory: str | os.PathLike[str] | None = None,
        priority: int = 0,
    ) -> None:
        if memory.is_freed or place_of(memory) is None:
            raise ValueError(f"a whole memory can be spilled, got {memory!r}")
        if to is None:
            is_file = is_plain_host(memory) or directory is not None
            to = "file" if is_file else "host"
        if to not in PLACES:
            raise ValueError(f"to must be one of {', '.join(PLACES)}, got {to!r}")
        if to == "host" and directory is not None:
            raise ValueError(f"directory is for to='file', got {directory!r}")
        self.nbytes = memory.nbytes
        self._pool: Pool = memory.pool
        self._tag, self._stream = memory.tag, memory.stream
        self._to = to
        self._directory = None if directory is None else os.fspath(directory)
        self._memory: Memory | None = memory
        self._copy: Copy | None = None
        super().__init__()
        queue = queue_of(self._pool, priority)
        with _lock:
            queue.members.add(self)

    @property
    def is_spilled(self) -> bool:
        """Whether the content is elsewhere now."""
        return self._copy is not None

    def restored(self) -> Memory:
        """Return the memory for a ``with`` block, which holds the lock."""
        return self._restore() if self._memory is None else self._memory

    def spill(self) -> int:
        """Spill the content now, unless it is in use.

        Returns:
            Bytes that the memory took, which are free now; 0 when nothing was done.

        Raises:
            OSError: The file cannot be written. The content stays where it was.
        """
        with self.lock:
            return self._spill()

    def spill_if_unused(self) -> int:
        """Spill, but skip what another thread holds the lock of.

        To wait for it could deadlock: two threads, each in the restore of one memory,
        would wait to spill the other's.
        """
        return try_lock(self.lock, self._spill, otherwise=0)

    def close(self) -> None:
        """Free the memory, or forget what was spilled of it. May be called twice.

        Raises:
            ValueError: It is in use.
        """
        with self.lock:
            if self.users:
                raise ValueError(f"{self!r} is in use; close it after its with block")
            memory, self._memory = self._memory, None
            copy, self._copy = self._copy, None
        if memory is not None:
            memory.free()
        if copy is not None:
            copy.close()

    def forget_lock(self) -> None:
        """Replace the lock in a forked child, where its owner does not run.

        The fork may have come between the two stores of ``_restore`` or ``_spill``: a
        memory that is there has the whole content.
        """
        self.lock = threading.RLock()
        if self._memory is not None:
            self._copy = None

    def _spill(self) -> int:
        memory = self._memory
        if memory is None or self.users or is_viewed(memory) or has_slices(memory):
            return 0
        is_host = self._to == "host"
        self._copy = HostCopy(memory) if is_host else FileCopy(memory, self._directory)
        self._memory = None
        capacity = memory.capacity
        # Without a GIL, references that another thread made for its views are merged
        # when that thread gets to it, and the block would be live until then.
        detach(memory)
        memory.free()
        return capacity

    def _restore(self) -> Memory:
        copy = self._copy
        if copy is None:
            raise ValueError(f"{self!r} was closed")
        memory = self._pool.allocate(self.nbytes, stream=self._stream, tag=self._tag)
        try:
            copy.restore(memory)
        except BaseException:
            memory.free()
            raise
        # In this order: a fork or a KeyboardInterrupt in between finds the content in
        # both places; in the other order, in neither.
        self._memory = memory
        self._copy = None
        copy.close()
        return memory

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: two of them would free one memory; "
            "pass mem.tobytes() for its content, within its with block"
        )

    def __repr__(self) -> str:
        where = f"in a {self._to}" if self.is_spilled else f"on {self._pool.device}"
        return f"<madl.Spillable of {self.nbytes} bytes {where}>"


class SpillQueue:
    """All that can be spilled from one pool with one priority."""

    def __init__(self) -> None:
        self.members: weakref.WeakSet[Spillable] = weakref.WeakSet()

    def spill_oldest(self, nbytes: int) -> Freed:
        """Spill what was not used for the longest time, until so much is free."""
        freed = 0
        for _ in range(MOST_PASSES):
            members = self._by_use()
            seen = [spillable.last_used for spillable in members]
            freed += self._spill(members, nbytes - freed)
            # A thread that leaves one with block and enters another between two looks
            # is seen in use both times, though one of the two was always free: scan
            # again as long as uses have ended since.
            if freed >= nbytes or seen == [one.last_used for one in members]:
                break
        return Freed(freed)

    def _by_use(self) -> list[Spillable]:
        with _lock:
            return sorted(living(self.members), key=lambda one: one.last_used)

    def _spill(self, members: list[Spillable], nbytes: int) -> int:
        freed = 0
        failure: Exception | None = None
        for spillable in members:
            if freed >= nbytes:
                return freed
            try:
                freed += spillable.spill_if_unused()
            except (OSError, MemoryError, MadlError) as error:
                failure = error  # another one may have its file elsewhere
        try:
            if failure is not None:
                raise failure
            return freed
        finally:
            del failure  # its traceback has this frame: a reference cycle

    def spill_rest(self, nbytes: int) -> Freed:
        """Spill all: enough may be free by now, but in too small pieces."""
        del nbytes
        return Freed(self._spill(self._by_use(), sys.maxsize))


_queues: "weakref.WeakKeyDictionary[Pool, dict[int, SpillQueue]]"
_queues = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def queue_of(pool: Pool, priority: int) -> SpillQueue:
    """Return the queue of a pool and a priority; the first call registers it."""
    with _lock:
        queues = _queues.setdefault(pool, {})
        queue = queues.get(priority)
        if queue is None:
            queue = queues[priority] = SpillQueue()
            pool.on_out_of_memory(queue.spill_oldest, priority)
            pool.on_out_of_memory(queue.spill_rest, priority)
        return queue


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # its owner may be a thread that the child does not have
    for queues in list(_queues.values()):
        for queue in queues.values():
            for spillable in living(queue.members):
                spillable.forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
