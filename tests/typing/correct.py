"""Uses of madl that are right: type checkers know the type of each, and it runs.

``wrong.py`` has their opposites.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, assert_type

import numpy as np

import madl
import madl.integrations.numpy
from madl.backends.registry import open_device
from madl.diagnostics.traces.reader import read_trace
from madl.diagnostics.traces.trace import Trace
from madl.errors import NativeFailure
from madl.hotpath import IS_COMPILED
from madl.integrations.shared import Token
from madl.pool import ClosedPool
from madl.testing import FakeBackend


def pools() -> None:
    with madl.Pool("cpu", limit="64 MiB", soft_limit=32 << 20, fit="best") as pool:
        assert_type(pool, madl.Pool)
        assert_type(pool.device, str)
        assert_type(pool.limit_nbytes, int | None)
        assert_type(pool.trim(keep="1 MiB"), int)
        pool.check()
        remove = pool.on_out_of_memory(lambda nbytes: nbytes + 1, priority=1)
        assert_type(remove, Callable[[], None])
        remove()
    assert_type(pool.close(), ClosedPool)
    assert_type(madl.default_pool("cpu"), madl.Pool)
    with madl.use_pool(madl.Pool(FakeBackend())) as in_use:
        assert_type(in_use, madl.Pool)
    madl.Pool(open_device("sim")).close()
    madl.limit_device("cpu", None, soft_limit="1 TiB")
    madl.limit_device("cpu", None)


def memories(pool: madl.Pool) -> None:
    memory = pool.allocate("1 MiB", alignment=4096, stream=None, tag="weights")
    assert_type(memory, madl.Memory)
    assert_type(madl.allocate(64, device="cpu", tag="x"), madl.Memory)
    assert_type(memory.nbytes, int)
    assert_type(memory.address, int)
    assert_type(memory.tag, str | None)
    assert_type(memory.is_freed, bool)
    assert_type(memory[16:32], madl.Memory)
    assert_type(memory.memoryview(), memoryview)
    assert_type(memory.tobytes(), bytes)
    memory.copy_from(b"abc")
    memory.fill(255)
    madl.copy(memory, b"abc")
    memory.resize("2 MiB")
    with memory as same:
        assert_type(same, madl.Memory)


def arrays(pool: madl.Pool) -> None:
    array = pool.allocate(64).as_array("float32", (4, 4))
    assert_type(array, np.ndarray[Any, Any])
    assert_type(madl.empty((2, 3), "float32"), np.ndarray[Any, Any])
    assert_type(madl.zeros(5, np.int8), np.ndarray[Any, Any])
    assert_type(madl.full([2, 2], 7), np.ndarray[Any, Any])
    assert_type(madl.empty_like(array, dtype=np.dtype("u1")), np.ndarray[Any, Any])


def routed(pool: madl.Pool) -> None:
    route = madl.integrations.numpy.route(threshold="1 MiB", pool=pool)
    assert_type(route, madl.integrations.numpy.Route)


def figures(pool: madl.Pool) -> None:
    stats = pool.stats()
    assert_type(stats, madl.PoolStats)
    assert_type(stats.live_nbytes, int)
    assert_type(stats.fragmentation_ratio, float)
    assert_type(stats.tags, Mapping[str, madl.TagStats])
    assert_type(pool.snapshot(), madl.PoolSnapshot)
    assert_type(pool.snapshot().arenas[0].blocks[0].tag, str | None)
    assert_type(madl.outstanding(pool), tuple[madl.Outstanding, ...])
    assert_type(madl.devices(), tuple[str, ...])
    assert_type(madl.backends(), tuple[str, ...])
    assert_type(madl.trim("1 GiB"), int)
    assert_type(madl.__version__, str)


def recordings(folder: Path) -> None:
    path = folder / "run.trace.gz"
    with madl.record(path, stacks=2) as recorder, madl.tag("step", limit="1 GiB"):
        recorder.mark("first")
        madl.allocate(64).free()
    trace = read_trace(path)
    assert_type(trace, Trace)
    assert_type(trace.peak_live_nbytes, int)
    with madl.leak_check(), madl.keep_stacks(3), madl.debug():
        pass
    with madl.show_in_tracemalloc():
        pass


def errors(pool: madl.Pool) -> None:
    try:
        pool.allocate("1 GiB")
    except madl.OutOfMemoryError as error:
        as_built_in: MemoryError = error
        assert_type(error.requested, int)
        assert_type(error.limit, int | None)
        assert_type(error.report, madl.OutOfMemoryReport)
        assert_type(error.report.native, NativeFailure | None)
        assert as_built_in.args
    except (madl.FreedMemoryError, madl.BackendNotFoundError) as error:
        assert_type(error, madl.FreedMemoryError | madl.BackendNotFoundError)


def lent(pool: madl.Pool) -> None:
    spillable = madl.Spillable(pool.allocate(64), to="host")
    with spillable as memory:
        assert_type(memory, madl.Memory)
    assert_type(spillable.spill(), int)
    spillable.close()
    with madl.allocate(64, device="shared") as shared:
        assert_type(madl.share(shared), Token)


def configured() -> None:
    madl.configure(limit="8 GiB, sim=1 TiB", fit="first", recycle=True)


def main() -> None:
    """Run each use; of those that a device must have, the CPU's."""
    configured()
    pools()
    with madl.Pool("cpu", limit="64 MiB") as pool:
        for use in (memories, arrays, figures, errors, lent):
            use(pool)
        if IS_COMPILED:
            routed(pool)
    with tempfile.TemporaryDirectory() as folder:
        recordings(Path(folder))


if __name__ == "__main__":
    main()
