"""Every ``malloc`` of the compiled core fails, one after the other; prints the counts.

A script, since it needs ``mallocs.c`` in LD_PRELOAD. For each number n a piece of work
runs on a new pool, while call n of the core fails: that one, or all from it on. Each
step of the work either succeeds or says that there is no memory, and after it the pool
is sound. Then the same steps succeed, and all memory comes back.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import madl
from madl import Memory, Pool
from madl.hotpath import HotPool
from madl.integrations.cuda_pool import FREE, MALLOC, RECORD_STREAM, CudaPool
from madl.pool.allocate import parts_of

KIB = 1 << 10
EVER = 1 << 40

Work = Callable[["Steps"], None]
"""What is done, step by step."""


class Mallocs:
    """What ``mallocs.c`` lets a test do."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.mallocs_site.restype = ctypes.c_size_t
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/madl/" in line and line.endswith(".so") and " r-xp " in line:
                ends = (int(end, 16) for end in line.split()[0].split("-"))
                self._library.mallocs_watch(*map(ctypes.c_size_t, ends))

    def fail(self, first: int, last: int) -> None:
        """Let calls of the core fail, counted from the next; 0 for none."""
        self._library.mallocs_fail(ctypes.c_long(first), ctypes.c_long(last))

    @property
    def site(self) -> int:
        """The address of the first call that failed, or 0."""
        return int(self._library.mallocs_site())


class Steps:
    """The steps of one piece of work, of which some find no memory."""

    def __init__(self, mallocs: Mallocs) -> None:
        self.refused = 0
        self.site = 0
        self._mallocs = mallocs

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Let a step find no memory, and nothing else."""
        try:
            yield
        except MemoryError as error:
            if type(error) is not MemoryError:
                raise
            self.refused += 1

    def recover(self) -> None:
        """Let no call fail any more."""
        self.site = self.site or self._mallocs.site
        self._mallocs.fail(0, 0)

    def check(self, pool: Pool) -> None:
        """Verify that a pool is sound, or that no memory is there to rebuild it."""
        with self.step():
            pool.check()

    def drain(self, pool: Pool) -> None:
        """Verify that a pool of which nothing is live gives all back, and close it."""
        with self.step():
            pool.trim()  # needs no memory, unless it rebuilds the pool first
        self.recover()
        pool.check()
        pool.trim()
        pool.check()
        stats = pool.stats()
        left = stats.live_nbytes, stats.cached_nbytes, stats.committed_nbytes
        assert left == (0, 0, 0), left
        pool.close()


def many_sizes(steps: Steps) -> None:
    """More sizes than slots for bins, more blocks than a slab, many pieces."""
    with steps.step():
        pool = Pool("sim", debug=False)
        held: list[Memory | None] = []
        for i in range(700):
            with steps.step():
                held.append(pool.allocate(512 * (1 + i * 7 % 300)))
        steps.check(pool)
        held[::2] = [None] * len(held[::2])
        for i in range(200):  # the freed ones go back to the index
            with steps.step():
                held.append(pool.allocate(400 * KIB + 512 * i))
        steps.check(pool)
        held.clear()
        steps.drain(pool)


def unusual_blocks(steps: Steps) -> None:
    """Alignments, no bytes, dedicated arenas, streams, debug mode."""
    every: list[dict[str, Any]]
    every = [{}, {"pooling": False}, {"debug": True}, {"zero": True}]
    for options in every:
        with steps.step():
            pool = Pool("cpu", **{"debug": False, **options})
            held: list[Memory] = []
            for i in range(40):
                with steps.step():
                    held.append(
                        pool.allocate(512 * i, alignment=4096 if i % 3 else 512)
                    )
                with steps.step():
                    held.append(
                        pool.allocate(100 * i + 1, tag="some" if i % 2 else None)
                    )
            steps.check(pool)
            held.clear()
            steps.drain(pool)


def rebuilt(steps: Steps) -> None:
    """A pool that is rebuilt after an interruption."""
    with steps.step():
        pool = Pool("sim", debug=False)
        held: list[Memory | None] = []
        for i in range(600):
            with steps.step():
                held.append(pool.allocate(512 + 512 * (i % 5)))
        held[::2] = [None] * len(held[::2])
        parts_of(pool).shared.was_interrupted = True
        with steps.step():
            pool.trim()
        with steps.step():
            held.append(pool.allocate(512 * KIB))
        steps.check(pool)
        held.clear()
        steps.drain(pool)


class Native:
    """The C functions over a pool."""

    def __init__(self, pool: HotPool) -> None:
        found = importlib.import_module("madl.native.functions").native_functions(pool)
        self._context = found.context
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._malloc = ctypes.CFUNCTYPE(pointer, pointer, size)(found.malloc)
        self._free = ctypes.CFUNCTYPE(None, pointer, pointer, size)(found.free)

    def malloc(self, nbytes: int) -> int | None:
        """Return an address, or ``None``."""
        address: int | None = self._malloc(self._context, nbytes)
        return address

    def free(self, address: int) -> None:
        """Free it."""
        self._free(self._context, address, 0)


def in_c(steps: Steps) -> None:
    """A guarded pool, whose C functions keep a table of addresses."""
    with steps.step():
        pool = Pool("cpu", debug=False, limit="64 MiB")
        native = Native(pool)
        held = [native.malloc(1 + i * 131 % 9000) for i in range(1500)]
        steps.refused += held.count(None)
        shared = parts_of(pool).shared
        assert shared.live_high_water == shared.live_nbytes, "one refused was counted"
        for address in filter(None, held):
            native.free(address)
        steps.drain(pool)


class Node:
    """A part of a cycle, which only the collector ends."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.itself = self


def collected(steps: Steps) -> None:
    """A guarded pool, to which the collector frees as soon as an error is made."""
    with steps.step():
        pool = Pool("cpu", debug=False)
        Native(pool)
        held: list[Memory] = []
        gc.collect()
        thresholds = gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        for i in range(300):
            gc.disable()
            with steps.step():
                Node(pool.allocate(5000))
            gc.enable()
            with steps.step():
                held.append(pool.allocate(512 + i * 512 % (200 * KIB)))
        gc.set_threshold(*thresholds)
        held.clear()
        gc.collect()
        steps.drain(pool)


def recorded(steps: Steps) -> None:
    """A recording."""
    with steps.step(), tempfile.TemporaryDirectory() as folder:
        pool = Pool("sim", debug=False)
        try:
            with madl.record(Path(folder, "run.trace")):
                for _ in range(100):
                    with steps.step():
                        pool.allocate(512, tag="some")
        except OSError as error:  # a recording says so in its own way
            if error.errno != errno.ENOMEM:
                raise
            steps.refused += 1
        steps.drain(pool)


class DevicePool:
    """The C functions of the pool of a CUDA device; there is one in a process."""

    def __init__(self) -> None:
        self.pool = CudaPool.of()
        library = ctypes.CDLL(self.pool.library)
        pointer = ctypes.c_void_p
        self._malloc, self._free = library[MALLOC], library[FREE]
        self._malloc.restype = pointer
        self._malloc.argtypes = ctypes.c_ssize_t, ctypes.c_int, pointer
        self._free.argtypes = pointer, ctypes.c_ssize_t, ctypes.c_int, pointer
        self._record = library[RECORD_STREAM]
        self._record.argtypes = pointer, pointer

    def malloc(self, nbytes: int, stream: int) -> int | None:
        """Return an address, or ``None``."""
        address: int | None = self._malloc(nbytes, 0, stream)
        return address

    def record_stream(self, address: int, stream: int) -> None:
        """Say that a stream uses it too."""
        self._record(address, stream)

    def free(self, address: int) -> None:
        """Free it."""
        self._free(address, 0, 0, None)

    def drain(self) -> None:
        """Verify that the pool gives all back."""
        self.pool.check()
        self.pool.trim()
        self.pool.check()
        stats = self.pool.stats()
        assert (stats.live_nbytes, stats.committed_nbytes) == (0, 0), stats


def in_a_device_pool(steps: Steps) -> None:
    """The pool in C of a CUDA device."""
    native = DevicePool()
    held: list[int] = []
    for i in range(60):
        address = native.malloc(512 + i % 7 * (1 << 20), STREAMS[i % 3])
        steps.refused += address is None
        if address is not None:
            native.record_stream(address, STREAMS[i % 4])
            held.append(address)
        if i % 4 == 3 and held:
            native.free(held.pop(0))
        native.pool.check()
    for address in held:
        native.free(address)
    steps.recover()
    native.drain()


def used_elsewhere(steps: Steps) -> None:
    """A block goes back while a stream that was told of has yet to write to it."""
    from cuda.bindings import driver

    native = DevicePool()
    emulated = ctypes.CDLL("libcuda.so.1")
    emulated.emulated_set(b"lazy", ctypes.c_longlong(1))
    mine, other = STREAMS[1:3]
    address = native.malloc(2 << 20, mine)
    steps.refused += address is None
    if address is not None:
        driver.cuMemsetD8Async(address, 1, 512, other)
        native.record_stream(address, other)
        native.free(address)
        steps.recover()
        again = native.malloc(2 << 20, mine)
        assert again is not None
        driver.cuMemsetD8Async(again, 2, 512, mine)
        driver.cuStreamSynchronize(mine)
        emulated.emulated_run()
        found = bytearray(1)
        driver.cuMemcpyDtoH(found, again, 1)
        assert found == b"\2", f"another stream has written: {found!r}"
        native.free(again)
    steps.recover()
    native.drain()


WORKS: tuple[Work, ...] = (
    *(many_sizes, unusual_blocks, rebuilt, in_c, collected, recorded),
)
STREAMS: list[int] = []


def sweep(work: Work, mallocs: Mallocs) -> tuple[int, set[int]]:
    """Fail every call during some work; return how many, and where they were."""
    sites = set()
    count = 0
    for last in (0, EVER):
        for number in itertools.count(1):
            steps = Steps(mallocs)
            mallocs.fail(number, max(number, last))
            work(steps)
            steps.recover()
            if not steps.site:
                assert not steps.refused, f"{steps.refused} refusals without a reason"
                break
            sites.add(steps.site)
            count += 1
    return count, sites


def main() -> None:
    """Sweep all pieces of work; print how many calls failed, at how many places."""
    for name in ("device_pools", "functions"):
        importlib.import_module(f"madl.native.{name}")
    mallocs = Mallocs()  # last: it looks at what is loaded
    counts = {}
    places: set[int] = set()
    works = WORKS
    if "--device" in sys.argv:
        works = (in_a_device_pool, used_elsewhere)
        STREAMS.extend([0, *make_streams(3)])
    for work in works:
        work(Steps(mallocs))  # what is made once in a process
        counts[work.__name__], found = sweep(work, mallocs)
        places |= found
    print(json.dumps({"failed": counts, "places": len(places)}))


def make_streams(count: int) -> list[int]:
    """Return handles of new CUDA streams."""
    from cuda.bindings import driver

    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    return [int(driver.cuStreamCreate(1)[1]) for _ in range(count)]


if __name__ == "__main__":
    main()
