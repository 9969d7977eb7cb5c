"""``Memory``, interpreted.

A free only puts the block on a list. ``append`` is atomic, so no lock is taken and a
finalizer may run at any point.
"""

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from madl.hotpath.fallback.block import tell_watch
from madl.hotpath.fallback.hands import has_block_in_hand
from madl.hotpath.fallback.keeping import Keeping
from madl.hotpath.shared import HotArena, Watch, cold

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    import numpy as np
    import numpy.typing as npt


class _MadeByPools(type):
    """Lets nobody call ``Memory``; pools call ``make_memory``."""

    def __call__(cls, *arguments: object, **options: object) -> NoReturn:
        raise TypeError("a Memory is made by Pool.allocate or madl.allocate")


class Memory(Keeping, metaclass=_MadeByPools):
    """A piece of device memory, held until ``free()`` or until it is dropped.

    Made by ``Pool.allocate`` and ``madl.allocate``. Every method raises
    ``FreedMemoryError`` after ``free()``. A handle may be passed between threads; two
    threads must not free, resize or write the same one at once.
    """

    __slots__ = ()

    @has_block_in_hand
    def free(self) -> None:
        """Give the memory back to its pool.

        The next ``allocate`` can hand the block out again, so nothing may read or
        write it any more. While arrays or memoryviews of it live, the handle is dead
        at once and the block goes back with the last of them.

        Raises:
            FreedMemoryError: It was freed before.
            ValueError: It is a slice; free the memory that it was cut from.

        Complexity: O(1). Thread-safe; takes no lock and never calls the device.
        """
        block = self._block
        if block is None:
            raise cold["refuse_free"](self)
        self._block = None
        kept = self._root
        if kept is not None:
            self._root = None
            if block.watch is not None:
                block.watch.is_viewed = True
            return
        self._pool._account.total += block.refund
        block.refund = 0
        try:
            if block.watch is None:
                block.home.append(block)
            else:
                tell_watch(block)
        except BaseException:  # a signal handler's, and the block may be in no list
            self._pool._account.was_interrupted = True
            raise

    @has_block_in_hand
    def __del__(self) -> None:
        try:
            block = self._block
        except AttributeError:  # nothing was found for it
            return
        if block is None:
            return
        self._block = None
        if self._root is None:
            self._pool._account.total += block.refund
            block.refund = 0
            try:
                if block.watch is None:
                    block.home.append(block)
                else:
                    tell_watch(block, is_dropped=True)
            except BaseException:  # as for free
                self._pool._account.was_interrupted = True
                raise

    def _place(self) -> tuple[HotArena | None, int, int] | None:
        """Return arena, offset and capacity; ``None`` when it has no block."""
        block = self._block
        return None if block is None else (block.arena, block.offset, block.capacity)

    def _watch(self) -> Watch | None:
        return None if self._block is None else self._block.watch

    def _unbin(self) -> None:
        """Let the block go to no bin when it is freed, but wait to be taken back."""
        block = self._block
        if block is not None:
            self._pool._unbin_block(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._block is not None:
            self.free()

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self._nbytes

    @property
    def pool(self) -> Any:  # noqa: ANN401  # Pool, which is not known here
        """The pool that the memory came from."""
        return self._pool._head

    @property
    def capacity(self) -> int:
        """Bytes given, ``nbytes`` rounded up to the pool's granularity."""
        return cold["capacity"](self)

    @property
    def address(self) -> int:
        """Where the memory starts; 0 for zero bytes. Not covered by ``free``.

        Raises:
            MissingCapabilityError: The device has no addresses.
        """
        return cold["address"](self)

    @property
    def native(self) -> object:
        """What the device's own API calls this memory, an address or a ``cl_mem``."""
        return cold["native"](self)

    @property
    def device(self) -> str:
        """The device's name, as in ``"cpu"``."""
        return cold["device"](self)

    @property
    def tag(self) -> str | None:
        """The tag that the memory was allocated under."""
        return cold["tag"](self)

    @property
    def stream(self) -> object:
        """The stream that owns the memory; ``None`` on devices without streams."""
        return cold["stream"](self)

    @property
    def is_freed(self) -> bool:
        """Whether ``free()`` has been called, on it or on what it was cut from."""
        return cold["is_freed"](self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return cold["array_interface"](self)

    def as_array(
        self,
        dtype: "npt.DTypeLike" = "uint8",
        shape: "SupportsIndex | Sequence[SupportsIndex] | None" = None,
    ) -> "np.ndarray[Any, Any]":
        """Return a NumPy array over the memory, without a copy.

        Args:
            dtype: Anything ``numpy.dtype`` accepts.
            shape: An int or a tuple; all of the memory as one dimension when None.

        Returns:
            A writable, C-contiguous ``numpy.ndarray``. The block stays live until the
            array and all arrays made from it are gone, whatever is freed before.

        Raises:
            ValueError: The array would be larger than the memory.
            MissingCapabilityError: The CPU cannot reach the device's memory.
        """
        return cold["as_array"](self, dtype, shape)

    def memoryview(self) -> builtins.memoryview:
        """Return a writable view of the bytes; it keeps the block live."""
        return cold["memoryview"](self)

    def __buffer__(self, flags: int) -> builtins.memoryview:
        return cold["memoryview"](self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return cold["cuda_array_interface"](self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return cold["dlpack_device"](self)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:  # noqa: ANN401  # what importers ask for, and its capsule
        return cold["dlpack"](self, stream, options)

    def tobytes(self) -> bytes:
        """Return a copy of the content."""
        return cold["tobytes"](self)

    def __len__(self) -> int:
        return self._nbytes

    def __getitem__(self, part: slice) -> "Memory":
        return cold["cut"](self, part)

    def copy_from(self, source: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
        """Copy the bytes of ``source`` to the start of this memory.

        Args:
            source: A ``Memory``, or anything with a C-contiguous buffer.
            stream: Where the copy is queued. Without one it is complete on return.

        Raises:
            ValueError: ``source`` is larger. Nothing is copied.
            NotContiguousError: ``source`` has gaps.
        """
        cold["copy_from"](self, source, stream)

    def copy_to(self, destination: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
        """Copy all bytes to the start of ``destination``.

        Args:
            destination: A ``Memory``, or anything with a writable, C-contiguous buffer.
            stream: Where the copy is queued. Without one it is complete on return.

        Raises:
            ValueError: ``destination`` is smaller. Nothing is copied.
            NotContiguousError: ``destination`` has gaps.
        """
        cold["copy_to"](self, destination, stream)

    def fill(self, value: int = 0) -> None:
        """Set every byte to ``value``, 0 to 255."""
        cold["fill"](self, value)

    def resize(self, nbytes: int | str) -> None:
        """Change ``nbytes``; the content up to the smaller size stays.

        The memory may move. Nothing changes on failure.

        Raises:
            ValueError: It is a slice, or views of it live.
            OutOfMemoryError: As for ``allocate``.
        """
        cold["resize"](self, nbytes)

    def record_stream(self, stream: object) -> None:
        """Say that queued work of another stream uses the memory.

        Raises:
            MissingCapabilityError: The device is not stream-ordered.
        """
        cold["record_stream"](self, stream)

    def __reduce_ex__(self, protocol: object) -> Any:  # noqa: ANN401  # it only raises
        raise cold["refuse_pickle"](self)

    def __repr__(self) -> str:
        return cold["repr"](self)


# As Memory() would, were it not refused: 40 ns less than object.__new__(Memory).
make_memory: Callable[[], Memory] = type.__call__.__get__(Memory)
