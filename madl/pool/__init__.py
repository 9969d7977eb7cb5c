"""The pool: memory of one device, allocated and freed without asking the device.

Its ``allocate`` is in ``hotpath``, what a miss does in ``slowpath``, and what is
committed and given back in ``growth``. Here is what people see of it besides.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Self

from madl.backends import registry
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Backend, HugePages
from madl.errors import BackendError, OutOfMemoryError
from madl.hotpath import BlockState
from madl.memory import staging
from madl.memory.methods import (
    copy as copy,  # what stands behind Memory's methods, and copies
)
from madl.pool import accounting, fork
from madl.pool.debug.mode import debugging
from madl.pool.debug.options import Debug, check_class, debug_wanted
from madl.pool.idle_trim import trim_when_idle
from madl.pool.options import Fit, PoolOptions, Zero
from madl.pool.shutdown import is_ending
from madl.pool.snapshot import PoolSnapshot
from madl.pool.stats import PoolStats
from madl.pool.streams import StreamPool
from madl.sizes import parse_nbytes


class ClosedPool(NamedTuple):
    """What was still live when a pool was closed.

    Attributes:
        live_count: Blocks that were live.
        live_nbytes: Bytes that were live, as asked for.
        tags: Tags and their live bytes, the largest first.
    """

    live_count: int
    live_nbytes: int
    tags: tuple[tuple[str | None, int], ...]


class Pool(StreamPool):
    """Memory of one device under one limit.

    Args:
        device: A device's name, or a backend object.
        limit: Bytes that may be committed at once; ``None`` for what the device has.
        soft_limit: Bytes; more is allowed, with a ``SoftLimitWarning``.
        fit: ``"first"`` for the lowest free block that is large enough (above 1 MiB:
            the smallest of the lowest eight that are), ``"best"`` for the smallest.
        recycle: Commit idle pages elsewhere before taking new ones.
        page_size: The unit of committing; ``None`` for what suits device and limit.
        huge_pages: Ask for huge OS pages, or not; ``None`` for what suits the pages.
            ``"explicit"`` takes those that an administrator has set aside.
        prefault: Fault memory in when it is committed, so that no first touch is slow.
        numa_node: Take memory of this NUMA node while it has any; ``None`` for what
            is near the thread that touches it first.
        zero: ``True`` hands out zeroed memory. ``"free"`` wipes what is freed: host
            memory before ``free`` returns, or with the last view; memory of a device
            behind its stream's queued work, which is queued by the next ``allocate``
            or ``trim`` that takes freed memory back. Nothing is handed out, recycled
            or given back unwiped. Both do without bins, so calls take longer.
        pooling: Keep freed memory for reuse. ``False`` takes every allocation from the
            device, for sanitizers and memory profilers; what was freed goes back when
            the pool next allocates, or is trimmed or closed. ``None`` follows
            ``madl.configure`` and the environment variable ``MADL_POOL``.
        debug: Put guard bytes around each block, fill what is allocated and freed,
            remember tracebacks, and warn of handles that are dropped. ``"pages"``: and
            let large blocks of host memory lie between OS pages that cannot be touched.
            ``None`` follows ``madl.configure`` and ``MADL_DEBUG`` as far as the device
            can.

    Raises:
        BackendNotFoundError: No backend opens the device.
        MissingCapabilityError: The device cannot honour an option.
        TypeError: ``device`` is neither a name nor a backend.
        MemoryCorruptionError: In debug mode, from any method that allocates or checks,
            and from ``free()``.

    Thread-safe. Takes nothing from the device before the first allocation.
    """

    def __new__(
        cls,
        *arguments: object,
        zero: object = False,
        debug: Debug = None,
        **options: object,
    ) -> Self:
        """Return a pool of the class that is in debug mode, or of this one."""
        is_debugging = debug_wanted(debug, zero=zero)
        return super().__new__(debugging(cls) if is_debugging else cls)

    def __init__(
        self,
        device: str | Backend = "cpu",
        *,
        limit: int | str | None = None,
        soft_limit: int | str | None = None,
        fit: Fit = "first",
        recycle: bool = True,
        page_size: int | str | None = None,
        huge_pages: HugePages = None,
        prefault: bool = False,
        numa_node: int | None = None,
        zero: Zero = False,
        pooling: bool | None = None,
        debug: Debug = None,
    ) -> None:
        if isinstance(device, str):
            backend = registry.open_device(device)
        else:
            backend = registry.check_backend(device)
        check_class(self, debug, zero=zero)
        counted = CountedBackend(backend)
        options = PoolOptions.resolve(
            counted,
            limit=limit,
            soft_limit=soft_limit,
            fit=fit,
            recycle=recycle,
            page_size=page_size,
            huge_pages=huge_pages,
            prefault=prefault,
            numa_node=numa_node,
            zero=zero,
            pooling=pooling,
            debug=debug,
        )
        super().__init__(counted, options)
        fork.protect(self)
        is_ending.trim_at_end(self)

    @property
    def limit_nbytes(self) -> int | None:
        """Bytes that may be committed at once; ``None`` without a limit."""
        return self._options.limit_nbytes

    @property
    def page_nbytes(self) -> int:
        """The unit of committing, in bytes."""
        return self._options.page_nbytes

    @property
    def zero(self) -> Zero:
        """Whether memory is zeroed, as chosen when the pool was made."""
        return self._options.zero

    @property
    def is_debugging(self) -> bool:
        """Whether it is in debug mode."""
        return False

    @property
    def is_closed(self) -> bool:
        """Whether ``close()`` has been called."""
        return self._is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def __del__(self, is_ending: Callable[[], bool] = is_ending) -> None:
        # An argument, because this module's names may be gone at interpreter exit.
        # In a cycle that is collected, handles and views may still be in use by other
        # finalizers, so what is live goes back with the last of them. At interpreter
        # exit the device may be gone, and the operating system takes the memory back.
        if hasattr(self, "_tags") and not is_ending():
            # A device that fails has it then.
            with contextlib.suppress(BackendError, OutOfMemoryError):
                self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a Pool of {self.device} cannot be pickled or copied; make another one: "
            f"Pool({self.device!r})"
        )

    def __repr__(self) -> str:
        return f"<madl.Pool on {self.device}: {self._live_nbytes} bytes live>"

    def on_out_of_memory(
        self, callback: Callable[[int], object], priority: int = 0
    ) -> Callable[[], None]:
        """Register a reclaimer: a function that gives memory up when asked.

        Args:
            callback: Called with the bytes that are needed, with no lock held. It
                frees what it can spare; what it returns is ignored. It is called
                again when that was enough, and another thread took it. An exception
                that it raises becomes the context of the OutOfMemoryError. If it
                holds memory of this pool, the pool stays until it is removed.
            priority: Reclaimers run in rising order.

        Returns:
            A function that removes the reclaimer.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        return self._reclaimers.register(callback, priority)

    def trim(self, keep: int | str = 0) -> int:
        """Give memory back to the device until at most ``keep`` bytes are committed.

        Pages with a live byte stay. Flushes the bins, decommits idle pages from the
        top down and releases arenas that are wholly free.

        Returns:
            Bytes given back.

        Complexity: O(n log n) in binned blocks. Thread-safe.
        """
        return self._trim(parse_nbytes(keep, name="keep"))

    def trim_when_idle(self, after_s: float, keep: int | str = 0) -> Callable[[], None]:
        """Call ``trim(keep)`` whenever nothing is allocated or freed for some time.

        From a daemon thread of its own, which ends with the pool. It looks every
        ``after_s`` seconds, so a trim comes up to twice as late. A forked child has no
        such thread.

        Args:
            after_s: Seconds without an allocation or a free.
            keep: As for ``trim``.

        Returns:
            A function that ends it.
        """
        return trim_when_idle(self, after_s, parse_nbytes(keep, name="keep"))

    def activity(self) -> tuple[int, int]:
        """Return figures that are others after any allocation or free. O(1)."""
        return self._allocation_count, self._live_nbytes

    def close(self) -> ClosedPool:
        """Allocate nothing any more, and give all memory back as it becomes free.

        Idle pages go now, the rest with the last block, never under a live view.

        Returns:
            What is still live: a leak, if nobody means to use it any more.
        """
        live = self._locked(self._close_now)
        held: Counter[str | None] = Counter()
        for state in live:
            held[state.tag] += state.nbytes
        self._tell_damage()
        return ClosedPool(len(live), held.total(), tuple(held.most_common()))

    def _close_now(self) -> list[BlockState]:
        with contextlib.suppress(BackendError):
            self._keep_damage()
        self._was_closed = True
        for lane in self._family():
            lane._stop_placing()
        self._release_all()
        return [state for state in self._all_states() if state.is_live]

    def stats(self) -> PoolStats:
        """Return the pool's figures at this moment.

        Complexity: O(blocks + pages): not for every step of a loop. Thread-safe.
        """
        return self._locked(
            lambda: accounting.collect_stats(self, self._growth, self._tags)
        )

    def snapshot(self) -> PoolSnapshot:
        """Return where every block lies. O(blocks + pages). Thread-safe."""
        return self._locked(lambda: accounting.collect_snapshot(self, self._growth))

    def check(self) -> None:
        """Verify every invariant of the pool. O(blocks + pages). Thread-safe.

        Raises:
            CorruptedPoolError: With what was found and what was expected.
            MemoryCorruptionError: In debug mode, with what was written outside a block.
        """
        self._locked(self._check_now)
        accounting.check_sums(self, self._growth, self._locked)
        self._tell_damage()

    def _check_now(self) -> None:
        accounting.check(self, self._growth)
        self._keep_damage()


staging.take_from(Pool)
