"""The pool: memory of one device, allocated and freed without asking the device.

What is hot is in ``hotpath``; what a pool commits and gives back is in ``growth``.
Here is what holds them together: options, the slow path under the one lock, limits,
statistics, closing.
"""

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self, cast

import madl.memory  # noqa: F401  # it registers what stands behind Memory's methods
from madl import accounting, events, forking
from madl.arena import Arena
from madl.backends import registry
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Backend
from madl.errors import (
    MadlError,
    MissingCapabilityError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)
from madl.growth import Growth
from madl.hotpath import BLOCK_GRANULARITY, Block, HotArena, HotPool, Memory
from madl.options import SMALL_NBYTES, PoolOptions
from madl.reclaim import Reclaimers, Step, raise_after
from madl.sizes import align_up, check_alignment, parse_nbytes
from madl.snapshot import PoolSnapshot
from madl.stats import PoolStats
from madl.watch import BlockWatch, TagUsage


class ClosedPool(NamedTuple):
    """What was still live when a pool was closed."""

    live_count: int
    live_nbytes: int
    tags: tuple[tuple[str | None, int], ...]
    """Tags and their live bytes, the largest first."""


class Pool(HotPool):
    """Memory of one device under one limit.

    Args:
        device: A device's name, or a backend object.
        limit: Bytes that may be committed at once; ``None`` for what the device has.
        fit: ``"first"`` for the lowest free block that is large enough, ``"best"`` for
            the smallest.
        recycle: Commit idle pages elsewhere before taking new ones.
        page_size: The unit of committing; ``None`` for what suits device and limit.
        huge_pages: Ask for huge OS pages, or not; ``None`` for what suits the pages.
        prefault: Fault pages in when they are committed. Not effective yet.
        zero: Hand out zeroed memory. Not effective yet.
        pooling: Keep freed memory for reuse. ``False`` takes every allocation from the
            device and gives it back when it is freed, for sanitizers and memory
            profilers. ``None`` follows the environment variable ``MADL_POOL``.

    Raises:
        BackendNotFoundError: No backend opens the device.
        MissingCapabilityError: The device cannot honour an option.

    Thread-safe. Takes nothing from the device before the first allocation.
    """

    def __init__(
        self,
        device: str | Backend = "cpu",
        *,
        limit: int | str | None = None,
        fit: str = "first",
        recycle: bool = True,
        page_size: int | str | None = None,
        huge_pages: bool | None = None,
        prefault: bool = False,
        zero: bool = False,
        pooling: bool | None = None,
    ) -> None:
        super().__init__()
        self._is_closed = False
        backend = registry.open_device(device) if isinstance(device, str) else device
        self._backend = CountedBackend(backend)
        self.device = backend.device
        self.capabilities = backend.capabilities
        self._options = PoolOptions.resolve(
            self._backend,
            limit=limit,
            fit=fit,
            recycle=recycle,
            page_size=page_size,
            huge_pages=huge_pages,
            prefault=prefault,
            zero=zero,
            pooling=pooling,
        )
        if self._options.has_bands:
            self._small_nbytes = SMALL_NBYTES
        bands = cast("tuple[list[Arena], list[Arena]]", self._bands)
        self._growth = Growth(self._backend, bands, self._options)
        self._reclaimers = Reclaimers()
        self._tags: dict[str, TagUsage] = {}
        forking.protect(self)

    @property
    def limit_nbytes(self) -> int | None:
        """Bytes that may be committed at once; ``None`` without a limit."""
        return self._options.limit_nbytes

    @property
    def page_nbytes(self) -> int:
        """The unit of committing, in bytes."""
        return self._options.page_nbytes

    @property
    def is_closed(self) -> bool:
        """Whether ``close()`` has been called."""
        return self._is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def __del__(self) -> None:
        # In a cycle that is collected, handles and views may still be in use by other
        # finalizers, so what is live goes back with the last of them. At interpreter
        # exit the device may be gone, and the operating system takes the memory back.
        if hasattr(self, "_tags") and not sys.is_finalizing():
            with contextlib.suppress(MadlError):  # a device that fails has it then
                self.close()

    def __repr__(self) -> str:
        return f"<madl.Pool on {self.device}: {self._live_nbytes} bytes live>"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the pool's lock, which is not reentrant."""
        if self._lock_holder == threading.get_ident():
            raise RuntimeError(
                f"{self!r} is in the middle of a call of this thread; signal handlers "
                "and finalizers may allocate and free, nothing else"
            )
        ident = threading.get_ident()
        with self._lock:
            # No call in between: a signal handler that came there would wait for ever.
            self._lock_holder = ident
            try:
                yield
            finally:
                self._lock_holder = 0
        if self._is_closed:
            self._freed_after_close()

    def _allocate_with(
        self,
        nbytes: int | str,
        alignment: int | None,
        stream: object,
        tag: str | None,
    ) -> Memory:
        asked = parse_nbytes(nbytes)
        aligned = check_alignment(alignment)
        if tag is not None and not isinstance(tag, str):
            raise TypeError(f"tag must be a text, got {tag!r} ({type(tag).__name__})")
        if stream is not None:
            raise MissingCapabilityError(
                self.device, "streams", "allocate without stream="
            )
        if tag is None:
            tag = events.current_tag.get()
        if aligned <= BLOCK_GRANULARITY or asked == 0:
            block = self._miss(asked)
        else:
            # A bin promises no more than the usual alignment, so it is passed by.
            capacity = align_up(asked, BLOCK_GRANULARITY)
            block = self._place_slowly(asked, capacity, aligned)
        if tag is None and not events.listeners:
            return self._hand_out(block, asked, None)
        usage = None if tag is None else self._tags.setdefault(tag, TagUsage())
        try:
            watch = BlockWatch(asked, tag, usage)
        except BaseException:  # a listener's
            self._hand_out(block, asked, None).free()
            raise
        memory = self._hand_out(block, asked, watch)
        watch.count(memory.capacity - asked)
        return memory

    def _place_apart(self, nbytes: int, alignment: int = 0) -> Block:
        parse_nbytes(nbytes)
        self._refuse_if_closed()
        capacity = align_up(nbytes, self._backend.granularity)
        try:
            arena, offset = self._growth.place_apart(capacity, alignment)
        except OutOfMemoryError as refused:
            raise self._out_of_memory(
                nbytes, capacity, (), refused.report.native
            ) from None
        return self._block_at(arena, offset, capacity, is_binned=False)

    def _place_slowly(self, nbytes: int, capacity: int, alignment: int) -> Block:
        parse_nbytes(capacity)
        self._refuse_if_closed()
        if self._lock_holder == threading.get_ident():
            return self._place_apart(nbytes, alignment)
        if not self._options.pooling:
            with self._locked():
                self._take_back_returned()
                return self._place_apart(nbytes, alignment)
        limit = self._options.limit_nbytes
        if limit is not None and capacity > limit:
            raise self._out_of_memory(nbytes, capacity, (), None)
        tried: list[tuple[str, int]] = []
        cause: BaseException | None = None
        steps = self._steps(capacity)
        try:
            while True:
                try:
                    return self._try_to_place(capacity, alignment)
                except OutOfMemoryError as error:
                    native = error.report.native
                step = next(steps, None)
                if step is None:
                    raise_after(
                        cause,
                        self._out_of_memory(nbytes, capacity, tuple(tried), native),
                    )
                before = self._live_nbytes
                cause = step.run() or cause
                tried.append((step.name, max(before - self._live_nbytes, 0)))
        finally:
            del cause  # as in raise_after

    def _steps(self, capacity: int) -> Iterator[Step]:
        """Yield what to try, in order, before a request fails."""
        if not self._options.recycle:  # else idle pages have been used already
            room = (self._options.limit_nbytes or capacity) - capacity
            yield Step("trim", functools.partial(self.trim, room))
        yield from self._reclaimers.steps(capacity)

    def _try_to_place(self, capacity: int, alignment: int) -> Block:
        """Place a block after all that is free has been joined, or raise."""
        with self._locked():
            self._take_back_returned()
            self._flush()
            arena, offset = self._growth.place(capacity, alignment)
            committed_nbytes = self._growth.committed_nbytes
            self._leash_nbytes = self._options.leash_nbytes(committed_nbytes)
            return self._block_at(arena, offset, capacity, is_binned=alignment == 0)

    def _release_apart(self, arena: HotArena) -> None:
        self._growth.release_apart(cast("Arena", arena))

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            # A free that found the lock taken, on the way here, has left it to us.
            self._freed_after_close()
            raise ValueError(
                f"a closed pool of {self.device} allocates nothing; make a new Pool"
            )

    def _out_of_memory(
        self,
        nbytes: int,
        capacity: int,
        tried: tuple[tuple[str, int], ...],
        native: NativeFailure | None,
    ) -> OutOfMemoryError:
        numbers = {}
        if self._lock_holder != threading.get_ident():
            stats = self.stats()
            live = stats.live_nbytes + stats.padding_nbytes
            numbers = {
                "committed_nbytes": stats.committed_nbytes,
                "live_nbytes": stats.live_nbytes,
                "padding_nbytes": stats.padding_nbytes,
                "cached_nbytes": stats.cached_nbytes,
                "free_nbytes": stats.committed_nbytes - live,
                "largest_free_nbytes": stats.largest_free_nbytes,
            }
        return OutOfMemoryError(
            OutOfMemoryReport(
                device=self.device,
                requested_nbytes=nbytes,
                capacity_nbytes=capacity,
                limit_nbytes=self._options.limit_nbytes,
                tried=tried,
                native=native,
                **numbers,
            )
        )

    def on_out_of_memory(
        self, callback: Callable[[int], object], priority: int = 0
    ) -> Callable[[], None]:
        """Register a reclaimer: a function that gives memory up when asked.

        Args:
            callback: Called with the bytes that are needed, with no lock held. It
                frees what it can spare; what it returns is ignored. An exception
                that it raises becomes the context of the OutOfMemoryError.
            priority: Reclaimers run in rising order.

        Returns:
            A function that removes the reclaimer.
        """
        return self._reclaimers.register(callback, priority)

    def trim(self, keep: int | str = 0) -> int:
        """Give memory back to the device until at most ``keep`` bytes are committed.

        Pages with a live byte stay. Flushes the bins, decommits idle pages from the
        top down and releases arenas that are wholly free.

        Returns:
            Bytes given back.

        Complexity: O(n log n) in binned blocks. Thread-safe.
        """
        kept = parse_nbytes(keep, name="keep")
        with self._locked():
            before = self._growth.committed_nbytes
            self._take_back_returned()
            self._flush()
            self._growth.trim(kept)
            return before - self._growth.committed_nbytes

    def close(self) -> ClosedPool:
        """Allocate nothing any more, and give all memory back as it becomes free.

        Idle pages go now, the rest with the last block, never under a live view.

        Returns:
            What is still live: a leak, if nobody means to use it any more.
        """
        with self._locked():
            self._is_closed = True
            self._growth.stop_placing()
            self._return_every_free()
            self._release_idle()
            live = [state for state in self._block_states() if state.is_live]
        held: Counter[str | None] = Counter()
        for state in live:
            held[state.tag] += state.nbytes
        return ClosedPool(len(live), held.total(), tuple(held.most_common()))

    def _release_idle(self) -> None:
        self._take_back_returned()
        self._flush()
        self._growth.trim(0)

    def _freed_after_close(self) -> None:
        while self._has_returned() and not sys.is_finalizing():
            ident = threading.get_ident()
            if not self._lock.acquire(blocking=False):
                return  # whoever holds it comes here on its way out
            self._lock_holder = ident
            try:
                # No free raises because of the device; the next one tries again.
                with contextlib.suppress(MadlError):
                    self._release_idle()
            finally:
                self._lock_holder = 0
                self._lock.release()

    def stats(self) -> PoolStats:
        """Return the pool's figures at this moment.

        Complexity: O(blocks + pages): not for every step of a loop. Thread-safe.
        """
        with self._locked():
            return accounting.collect_stats(self, self._growth, self._tags)

    def snapshot(self) -> PoolSnapshot:
        """Return where every block lies. O(blocks + pages). Thread-safe."""
        with self._locked():
            return accounting.collect_snapshot(self, self._growth)

    def check(self) -> None:
        """Verify every invariant of the pool. O(blocks + pages). Thread-safe.

        Raises:
            CorruptedPoolError: With what was found and what was expected.
        """
        with self._locked():
            accounting.check(self, self._growth)
