"""What both bodies of the hot path share: arenas, watches, and their slow path."""

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from madl.backends.protocol import Backend
from madl.core.first_fit import FirstFit
from madl.stacks import Stack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    import numpy as np
    import numpy.typing as npt

BLOCK_GRANULARITY = 512
"""Capacities and offsets of blocks are multiples of it: the alignment that CUDA
promises, so that the same program has the same offsets on every device."""


LARGEST_REQUEST_NBYTES = 1 << 62
"""What offsets of 64 bits, and sums of two, leave room for."""

special: dict[str, Callable[..., Any]] = {}
"""Functions behind methods of ``Memory`` that an interpreter looks up on the type."""

known_dtypes: dict[Any, Any] = {}
"""NumPy's data types that arrays over memory may have, by what callers named them."""

array_of: list[Callable[..., Any]] = []
"""``numpy.ndarray``, once it has been needed."""


_Block = TypeVar("_Block")
_Memory = TypeVar("_Memory")
_Pool_contra = TypeVar("_Pool_contra", contravariant=True)


class SlowPath(Protocol[_Pool_contra, _Block, _Memory]):
    """What the hot path calls when it cannot serve an allocation or a free by itself.

    Pools, blocks and handles are those of the body that runs.
    """

    stream: object
    """The stream that it serves; ``None`` for the default one."""

    @property
    def backend(self) -> Backend:
        """The backend of the pool's device."""

    def allocate_with(
        self,
        pool: _Pool_contra,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> _Memory:
        """Allocate where an argument, a tag or a listener needs more than a bin."""

    def place_slowly(self, nbytes: int, capacity: int, alignment: int) -> _Block:
        """Return a block for which pages have to be found, or raise."""

    def place_dedicated(self, nbytes: int) -> _Block:
        """Return a block with a reservation of its own: for a re-entrant call."""

    def zero_new(self, block: _Block) -> None:
        """Set a block to zero that is about to be handed out, or raise."""

    def take_back(self, block: _Block) -> None:
        """Take back a freed block that is not for the index as it is."""

    def record_stream(self, memory: _Memory, stream: object) -> None:
        """Keep a block, once it is free, from reuse while a stream may use it."""

    def freed_after_close(self) -> None:
        """Give back what was freed since the pool was closed. Runs in finalizers."""


class Handle:
    """A piece of device memory, held until ``free()`` or until it is dropped.

    Made by ``Pool.allocate`` and ``madl.allocate``. Every method raises
    ``FreedMemoryError`` after ``free()``. A handle may be passed between threads; two
    threads must not free, resize or write the same one at once.
    """

    __slots__ = ()

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

    if TYPE_CHECKING:  # what memory.methods attaches, and documents
        __array_interface__: dict[str, Any]
        __cuda_array_interface__: dict[str, Any]

        @property
        def address(self) -> int: ...  # noqa: D102  # as attached; so all below
        @property
        def capacity(self) -> int: ...  # noqa: D102
        @property
        def device(self) -> str: ...  # noqa: D102
        @property
        def is_freed(self) -> bool: ...  # noqa: D102
        @property
        def native(self) -> object: ...  # noqa: D102
        @property
        def pool(self) -> Any: ...  # noqa: ANN401, D102  # the Pool
        @property
        def stream(self) -> object: ...  # noqa: D102
        @property
        def tag(self) -> str | None: ...  # noqa: D102
        def __len__(self) -> int: ...
        def __getitem__(self, part: slice) -> Self: ...
        def __buffer__(self, flags: int) -> builtins.memoryview: ...
        def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any: ...  # noqa: ANN401
        def __dlpack_device__(self) -> tuple[int, int]: ...
        def as_array(  # noqa: D102
            self,
            dtype: "npt.DTypeLike" = "uint8",
            shape: "SupportsIndex | Sequence[SupportsIndex] | None" = None,
        ) -> "np.ndarray[Any, Any]": ...
        def copy_from(self, source: Any, *, stream: object = None) -> None: ...  # noqa: ANN401, D102
        def copy_to(self, destination: Any, *, stream: object = None) -> None: ...  # noqa: ANN401, D102
        def fill(self, value: int = 0) -> None: ...  # noqa: D102
        def memoryview(self) -> builtins.memoryview: ...  # noqa: D102
        def record_stream(self, stream: object) -> None: ...  # noqa: D102
        def resize(self, nbytes: int | str) -> None: ...  # noqa: D102
        def tobytes(self) -> bytes: ...  # noqa: D102


class Allocating:
    """What allocates: a pool, or one of its lanes."""

    __slots__ = ()

    def allocate(
        self,
        nbytes: int | str,
        *,
        alignment: int | None = None,
        stream: object = None,
        tag: str | None = None,
    ) -> Any:  # noqa: ANN401  # the handle of the body that runs
        """Return memory of at least ``nbytes`` bytes; its content is undefined.

        Args:
            nbytes: Bytes, or a text such as ``"64 MiB"``. Zero is allowed.
            alignment: Bytes, a power of two. The device's own at least (512).
            stream: The stream whose work uses it, on stream-ordered devices.
            tag: A label that statistics, reports and traces show.

        Raises:
            OutOfMemoryError: It does not fit the limit or the device. The report in
                the error says why; accounting is unchanged and the pool usable.
            TypeError, ValueError, OverflowError: ``nbytes`` is no byte count.
            MissingCapabilityError: The device cannot honour an option.

        Complexity: O(1) when a block of the same rounded size was freed lately, else
        O(log n) in the pool's free blocks. Thread-safe.
        """


class HotArena:
    """What the hot path knows of an arena."""

    def __init__(
        self, blocks: FirstFit, address: int | None, *, is_dedicated: bool
    ) -> None:
        self.blocks = blocks
        self.address = address
        self.is_dedicated = is_dedicated  # to one block


class Watch:
    """What wants to know of a block's free: a tag's usage, a recording."""

    tag: str | None = None
    stack: Stack = ()
    is_viewed = False
    """Whether a view may keep the block, so that a drop is no missing free."""

    def dropped(self) -> None:
        """Take note of the drop of a handle without ``free()``."""
        self.freed()

    def freed(self) -> None:
        """Take note. Runs in finalizers: no lock, no pool, nothing that raises."""


class BlockState(NamedTuple):
    """A placed block, as statistics and snapshots see it."""

    arena: HotArena
    offset: int
    capacity: int
    is_live: bool
    nbytes: int
    tag: str | None
    stack: Stack


class NativeFunctions(NamedTuple):
    """Addresses of C functions over one pool, and the context they are called with.

    ``void *malloc(void *context, size_t nbytes)``,
    ``void *calloc(void *context, size_t count, size_t nbytes)``,
    ``void *realloc(void *context, void *pointer, size_t nbytes)``,
    ``void free(void *context, void *pointer, size_t nbytes)``.
    They return NULL when there is no memory, and may be called by any thread.
    """

    context: int
    malloc: int
    calloc: int
    realloc: int
    free: int
