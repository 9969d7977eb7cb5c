"""The operations of the public API, each as a sweep of faults runs it.

Every one can be run again, on what the one before it has left.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import madl
from madl import Memory, OutOfMemoryError, Pool, Spillable
from madl.backends.protocol import Capability
from madl.diagnostics import read_trace
from madl.hotpath import IS_COMPILED
from madl.sizes import ADDRESS_SPACE_NBYTES

NONE, HOST = Capability.NONE, Capability.HOST_ACCESS
ORDERED = Capability.STREAM_ORDERED
MOST_NBYTES = min(1 << 40, ADDRESS_SPACE_NBYTES // 2)
"""More than any device of the tests has."""
CONTENT = Capability.HOST_ACCESS | Capability.COPY
"""With either of them, what is in a block can be read and written."""


@dataclass
class Bench:
    """A pool that is in use, and what operations work with."""

    pool: Pool
    unit: int
    """Bytes of a page, or of about the size of a small segment."""
    kept: list[Memory]
    """Live before, during and after each operation, its content too."""
    streams: list[Any] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)
    """What an operation has made and not freed."""
    pools: list[Pool] = field(default_factory=list)
    """Pools that it has made: an interrupted finalizer can raise nothing."""

    @property
    def backend(self) -> Any:  # noqa: ANN401  # any
        """The backend itself."""
        return self.pool._backend.backend


@dataclass(frozen=True)
class Operation:
    """Something that a program does with a pool."""

    run: Callable[[Bench], None]
    needs: Capability = NONE
    """Any of these capabilities will do."""
    never_raises: bool = False
    """Whether a device that fails is no reason to raise."""


def allocate(bench: Bench) -> None:
    bench.made.append(bench.pool.allocate(3000, tag="made"))


def allocate_more_than_there_is(bench: Bench) -> None:
    """Let a pool take pages from elsewhere, or another segment."""
    bench.made.append(bench.pool.allocate(5 * bench.unit))


def allocate_aligned(bench: Bench) -> None:
    alignment = 2 * bench.pool._backend.alignment
    bench.made.append(bench.pool.allocate(bench.unit, alignment=alignment))


def allocate_too_much(bench: Bench) -> None:
    try:
        bench.made.append(bench.pool.allocate(MOST_NBYTES))
    except OutOfMemoryError:
        return
    raise AssertionError("the device has no such memory")


def allocate_nothing(bench: Bench) -> None:
    bench.made.append(bench.pool.allocate(0))


def allocate_with_a_reclaimer(bench: Bench) -> None:
    """Give the pool something to give up, at its limit."""
    spare = [bench.pool.allocate(bench.unit)]
    remove = bench.pool.on_out_of_memory(lambda _: spare.clear())
    try:
        bench.made.append(bench.pool.allocate(10 * bench.unit))
    finally:
        remove()
        spare.clear()


def make_arrays(bench: Bench) -> None:
    with madl.use_pool(bench.pool):
        arrays = [madl.empty((bench.unit // 8,)), madl.zeros((30, 40), "float32")]
    bench.made += arrays


def free(bench: Bench) -> None:
    while bench.made:
        bench.made.pop(0).free()


def close_views(bench: Bench) -> None:
    memory = bench.made.pop(0)
    view = memory.as_array("uint8", (memory.nbytes,))
    memory.free()
    del view


def drop(bench: Bench) -> None:
    bench.made.clear()


def trim(bench: Bench) -> None:
    bench.pool.trim()


def trim_a_little(bench: Bench) -> None:
    bench.pool.trim(keep=4 * bench.unit)


def trim_all_pools(bench: Bench) -> None:
    del bench
    madl.trim()


def close(bench: Bench) -> None:
    bench.pool.close()


def copy(bench: Bench) -> None:
    block = bench.pool.allocate(5000)
    try:
        block.copy_from(bytes(range(250)) * 20)
        other = bench.pool.allocate(5000)
        try:
            madl.copy(other, block)
            assert other.tobytes() == bytes(range(250)) * 20
            other.fill(7)
            assert other[10:20].tobytes() == b"\7" * 10
        finally:
            other.free()
    finally:
        block.free()


def resize(bench: Bench) -> None:
    block = bench.pool.allocate(1000)
    try:
        block.copy_from(b"\5" * 1000)
        block.resize(3 * bench.unit)
        assert block[:1000].tobytes() == b"\5" * 1000
    finally:
        block.free()


def view_natively(bench: Bench) -> None:
    assert bench.kept[1].native is not None


def share(bench: Bench) -> None:
    token = madl.share(bench.kept[0])
    attached = token.attach()
    try:
        assert attached.tobytes() == bench.kept[0].tobytes()
    finally:
        attached.free()


def limit_the_device(bench: Bench) -> None:
    committed = bench.pool.stats().committed_nbytes
    madl.limit_device(bench.backend, committed + bench.unit)
    try:
        bench.pool.allocate(6 * bench.unit).free()
    except OutOfMemoryError:
        pass  # as the limit says, where nothing is idle
    finally:
        madl.limit_device(bench.backend, None)


def spill(bench: Bench) -> None:
    spillable = Spillable(bench.pool.allocate(2 * bench.unit), to="host")
    try:
        with spillable as memory:
            memory.copy_from(b"\3" * memory.nbytes)
        assert spillable.spill()
        with spillable as memory:
            assert set(memory.tobytes()) == {3}
    finally:
        spillable.close()


def record(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with madl.record(os.path.join(folder, "run.trace.gz")) as recorder:
            bench.pool.allocate(2 * bench.unit, tag="recorded").free()
            recorder.mark("step")
        assert len(read_trace(recorder.path)) == 2


def look(bench: Bench) -> None:
    bench.pool.snapshot()
    bench.pool.stats()
    bench.pool.check()


def open_another_pool(bench: Bench) -> None:
    other = Pool(bench.backend)
    bench.pools.append(other)
    try:
        other.allocate(700).free()
    finally:
        other.close()


def use_streams(bench: Bench) -> None:
    """Free on one stream what another one used, and take it on a third."""
    first, second = bench.streams
    block = bench.pool.allocate(2 * bench.unit, stream=first)
    try:
        block.copy_from(bytes(2 * bench.unit), stream=first)
        block.record_stream(second)
    finally:
        block.free()
    bench.pool.allocate(2 * bench.unit, stream=second).free()


def forget_a_stream(bench: Bench) -> None:
    bench.pool.allocate(900, stream=bench.streams[0]).free()
    bench.pool.forget_stream(bench.streams[0])


def route_numpy(bench: Bench) -> None:
    """Let arrays of NumPy come, grow and go; what fails is a MemoryError of NumPy's."""
    import numpy as np  # here: not all who import the others have it

    from madl.integrations.numpy import route

    before = bench.pool.stats().live_nbytes
    with route(4096, bench.pool), contextlib.suppress(MemoryError):
        array = np.ones(2 * bench.unit, np.uint8)
        try:
            array.resize((3 * bench.unit,), refcheck=False)
        finally:
            assert array[: 2 * bench.unit].all()
            del array
    assert bench.pool.stats().live_nbytes == before


OPERATIONS = {
    "allocate": Operation(allocate),
    "allocate more": Operation(allocate_more_than_there_is),
    "allocate aligned": Operation(allocate_aligned),
    "allocate too much": Operation(allocate_too_much),
    "allocate nothing": Operation(allocate_nothing),
    "allocate, reclaim": Operation(allocate_with_a_reclaimer),
    "arrays": Operation(make_arrays, HOST),
    "free": Operation(free, never_raises=True),
    "views": Operation(close_views, HOST, never_raises=True),
    "drop": Operation(drop, never_raises=True),
    "trim": Operation(trim),
    "trim a little": Operation(trim_a_little),
    "trim all": Operation(trim_all_pools),
    "close": Operation(close),
    "copy": Operation(copy, CONTENT),
    "resize": Operation(resize, CONTENT),
    "native": Operation(view_natively, Capability.VIEW),
    "share": Operation(share, Capability.SHARE),
    "limit": Operation(limit_the_device),
    "spill": Operation(spill, CONTENT),
    "record": Operation(record),
    "look": Operation(look, never_raises=True),
    "open": Operation(open_another_pool),
    "streams": Operation(use_streams, ORDERED),
    "forget": Operation(forget_a_stream, ORDERED),
}
if IS_COMPILED:
    OPERATIONS["numpy"] = Operation(route_numpy, HOST)
