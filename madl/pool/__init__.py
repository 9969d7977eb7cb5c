"""The pool: memory of one device, allocated and freed without asking the device.

Its ``allocate`` is in ``hotpath``; an allocation that finds its bin empty goes on in
``allocate``. Here is what a program sees of it besides.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple, NoReturn, Self, cast

from madl.backends import registry
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Backend, HugePages
from madl.errors import BackendError, OutOfMemoryError
from madl.hotpath import HotPool, bins_of
from madl.memory import staging
from madl.memory.methods import copy as copy  # what stands behind Memory's, and copies
from madl.pool import accounting, lifecycle
from madl.pool.allocate import Lane, parts_of
from madl.pool.debug.options import Debug
from madl.pool.lifecycle import is_ending
from madl.pool.options import Fit, PoolOptions, Zero
from madl.pool.paging import Bands
from madl.pool.parts import Parts, register
from madl.pool.recovery import recover
from madl.pool.stats import PoolSnapshot, PoolStats
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


class Pool(HotPool):
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

    _lane: Lane

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
        bins = bins_of(self)
        parts = Parts(
            bins,
            counted,
            options,
            make_lane=_make_lane,
            recover=recover,
            give_back_freed=lifecycle.give_back_freed,
        )
        lane = Lane(parts, bins, parts.growth)
        parts.streams.lanes.append(lane)
        super().__init__(lane, parts.streams.seen)
        self.device = counted.device
        self.capabilities = counted.capabilities
        register(self, parts)
        is_ending.trim_at_end(self)

    @property
    def limit_nbytes(self) -> int | None:
        """Bytes that may be committed at once; ``None`` without a limit."""
        return self._lane.parts.options.limit_nbytes

    @property
    def page_nbytes(self) -> int:
        """The unit of committing, in bytes."""
        return self._lane.parts.options.page_nbytes

    @property
    def zero(self) -> Zero:
        """Whether memory is zeroed, as chosen when the pool was made."""
        return self._lane.parts.options.zero

    @property
    def is_debugging(self) -> bool:
        """Whether it is in debug mode."""
        return self._lane.parts.debug is not None

    @property
    def is_closed(self) -> bool:
        """Whether ``close()`` has been called."""
        return self._lane.parts.lock.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def __del__(self, is_ending: Callable[[], bool] = is_ending) -> None:
        # An argument, because this module's names may be gone at interpreter exit.
        # In a cycle that is collected, handles and views may still be in use by other
        # finalizers, so what is live goes back with the last of them. At interpreter
        # shutdown the device may be gone, and the system takes the memory back.
        if getattr(self, "_lane", None) is not None and not is_ending():
            # A device that fails has it then.
            with contextlib.suppress(BackendError, OutOfMemoryError):
                self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a Pool of {self.device} cannot be pickled or copied; make another one: "
            f"Pool({self.device!r})"
        )

    def __repr__(self) -> str:
        return self._lane.parts.describe()

    def on_out_of_memory(
        self, callback: Callable[[int], object], priority: int = 0
    ) -> Callable[[], None]:
        """Register a reclaimer: a function that gives memory up when asked.

        Args:
            callback: Called with the bytes that are needed, with no lock held. It
                frees what it can spare; what it returns is ignored. It is called
                again when that was enough, and another thread took it. An exception
                that it raises becomes the context of the OutOfMemoryError. If it
                holds memory of this pool, the pool stays until the callback is removed
                or the pool closed: a handle keeps its pool, and the collector sees
                nothing of that.
            priority: Reclaimers run in rising order.

        Returns:
            A function that removes the reclaimer.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        return self._lane.parts.reclaimers.register(callback, priority)

    def trim(self, keep: int | str = 0) -> int:
        """Give memory back to the device until at most ``keep`` bytes are committed.

        Pages with a live byte stay. Flushes the bins, decommits idle pages from the
        top down and releases arenas that are wholly free.

        Returns:
            Bytes given back.

        Complexity: O(n log n) in binned blocks. Thread-safe.
        """
        return self._lane.trim(parse_nbytes(keep, name="keep"))

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
        kept = parse_nbytes(keep, name="keep")
        return lifecycle.trim_when_idle(self, after_s, kept)

    def activity(self) -> tuple[int, int]:
        """Return figures that are others after any allocation or free. O(1)."""
        shared = self._lane.parts.shared
        return shared.allocation_count, shared.live_nbytes

    def close(self) -> ClosedPool:
        """Allocate nothing any more, and give all memory back as it becomes free.

        Idle pages go now, the rest with the last block, never under a live view.

        Returns:
            What is still live: a leak, unless it is used and freed later.
        """
        parts = self._lane.parts
        live = parts.lock.hold(lambda: lifecycle.close(parts))
        held: Counter[str | None] = Counter()
        for state in live:
            held[state.tag] += state.nbytes
        self._tell_damage()
        return ClosedPool(len(live), held.total(), tuple(held.most_common()))

    def forget_stream(self, stream: object) -> None:
        """Merge a stream's memory into the default stream's; it may end then.

        Its later work is of no concern to the pool. Needed before a stream ends that
        was given as a number; other streams are kept alive until they are forgotten.
        Blocks of it that are live stay so.

        Args:
            stream: As for ``allocate``. One that the pool does not know is ignored.

        Raises:
            MissingCapabilityError: The device is not stream-ordered.
        """
        parts = self._lane.parts
        key = parts.streams.key_of(stream, instead="forget none")
        parts.lock.hold(lambda: self._forget_stream(key))

    def _forget_stream(self, key: Hashable) -> None:
        self._lane.take_back_all()
        self._lane.parts.streams.forget(key)

    def stats(self) -> PoolStats:
        """Return the pool's figures at this moment.

        Complexity: O(blocks + pages): not for every step of a loop. Thread-safe.
        """
        parts = self._lane.parts
        return parts.lock.hold(lambda: accounting.collect_stats(parts))

    def snapshot(self) -> PoolSnapshot:
        """Return where every block lies. O(blocks + pages). Thread-safe."""
        parts = self._lane.parts
        return parts.lock.hold(lambda: accounting.collect_snapshot(parts))

    def check(self) -> None:
        """Verify every invariant of the pool. O(blocks + pages). Thread-safe.

        Raises:
            CorruptedPoolError: With what was found and what was expected.
            MemoryCorruptionError: In debug mode, with what was written outside a block.
        """
        parts = self._lane.parts
        parts.lock.hold(lambda: _check_locked(parts))
        accounting.check_sums(parts)
        self._tell_damage()

    def _tell_damage(self) -> None:
        debug = self._lane.parts.debug
        if debug is not None:
            debug.tell()


def _check_locked(parts: Parts) -> None:
    accounting.check(parts)
    lifecycle.look_for_damage(parts)


class StreamPool(HotPool):
    """What serves one stream of a pool, which it keeps alive."""

    _lane: Lane

    def __init__(self, head: HotPool, stream: object) -> None:
        parts = parts_of(head)
        bins = bins_of(self)
        bins.join(bins_of(head))
        bins.stream_number = len(parts.streams.lanes)
        growth = parts.growth.branch(cast("Bands", bins.bands), stream)
        super().__init__(Lane(parts, bins, growth, stream), parts.streams.seen, head)
        self.device = head.device
        self.capabilities = head.capabilities

    def __repr__(self) -> str:
        return f"<lane of {self._lane.stream!r} in {self._lane.parts.describe()}>"


def _make_lane(head: HotPool, stream: object) -> tuple[HotPool, Lane]:
    made = StreamPool(head, stream)
    return made, made._lane


staging.take_from(Pool)
