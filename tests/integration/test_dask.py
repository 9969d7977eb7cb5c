"""Pools on the workers of a Dask cluster, and memory on its way between them."""

import importlib.util
import sys

import numpy as np
import pytest

import madl
from madl import Pool
from tests.programs import run_as_file

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs Dask: pip install 'madl[dask]'", allow_module_level=True)

from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize
from rich.console import Console

from madl.integrations.dask import PoolPlugin, Report, WorkerDevice

MIB = 1 << 20

CLUSTER = """
import time

import madl
from distributed import Client, LocalCluster
from madl.integrations.dask import PoolPlugin, report

MIB = 1 << 20

def make(nbytes):
    memory = madl.allocate(nbytes, tag="made")
    memory.fill(7)
    return memory

def total(memory):
    assert memory.tag == "made"
    return int(memory.as_array().sum())

def limit():
    return madl.default_pool().limit_nbytes

def cluster_of(count):
    return LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        dashboard_address=None,
        host="127.0.0.1",
    )

def heartbeat(client, worker):
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return workers[worker]["metrics"].get("madl")

def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
"""

SMOKE = """
def main():
    with cluster_of(2) as cluster, Client(cluster) as client:
        client.register_plugin(PoolPlugin(limit="64 MiB"))
        first, second = sorted(client.run(lambda: None))

        held = client.submit(make, 3 * MIB, workers=[first])
        assert client.submit(total, held, workers=[second]).result() == 7 * 3 * MIB
        here = held.result()
        assert here.tobytes() == b"\\x07" * (3 * MIB)
        assert client.submit(total, client.scatter(here)).result() == 7 * 3 * MIB

        try:
            client.submit(make, 65 * MIB).result()
        except madl.OutOfMemoryError as error:
            assert error.limit == 64 * MIB
        else:
            raise AssertionError("the limit does not hold")

        found = report(client)
        assert found.failures == {}
        [used] = [one for one in found.devices if one[:2] == (first, "cpu")]
        assert used.limit_nbytes == 64 * MIB
        assert used.live_nbytes >= 3 * MIB

        def is_told():
            figures = heartbeat(client, first)  # None before the next heartbeat
            return figures is not None and figures["cpu"]["live_nbytes"] >= 3 * MIB

        wait_for(is_told)

if __name__ == "__main__":
    main()
"""

LATE = """
def main():
    with cluster_of(2) as cluster, Client(cluster) as client:
        client.register_plugin(PoolPlugin(limit="64 MiB"))
        cluster.scale(4)
        client.wait_for_workers(4)
        assert set(client.run(limit).values()) == {64 * MIB}

        held = client.map(make, [MIB + number for number in range(8)], pure=False)
        client.gather(client.map(total, held))
        client.register_plugin(PoolPlugin(limit="32 MiB"))
        assert set(client.run(limit).values()) == {32 * MIB}
        # What was live stays, and travels into the new pools.
        sums = client.gather(client.map(total, held, pure=False))
        assert sums == [7 * (MIB + number) for number in range(8)]

        killed = sorted(client.run(lambda: None))[0]
        client.submit(stop, workers=[killed], retries=0, pure=False)
        wait_for(lambda: killed not in client.scheduler_info(n_workers=-1)["workers"])
        client.wait_for_workers(4)
        assert set(client.run(limit).values()) == {32 * MIB}

        client.unregister_worker_plugin("madl")
        assert set(client.run(limit).values()) == {None}
        worker = sorted(client.run(lambda: None))[0]
        wait_for(lambda: heartbeat(client, worker) is None)

def stop():
    import os
    import signal
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    import dask
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    main()
"""


def test_a_cluster_of_processes_has_a_pool_on_each_worker() -> None:
    done = run_as_file(CLUSTER + SMOKE)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_workers_that_come_late_or_again_have_the_last_plugin() -> None:
    done = run_as_file(CLUSTER + LATE)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_memory_is_sent_without_a_copy_and_arrives_in_the_pool_in_use() -> None:
    memory = madl.allocate(1000, tag="weights")
    memory.fill(5)

    header, frames = serialize(memory)
    with Pool("cpu") as pool, madl.use_pool(pool):
        arrived = deserialize(header, frames)

        assert np.shares_memory(np.asarray(frames[0]), memory.as_array())
        assert (arrived.pool, arrived.tag) == (pool, "weights")
        assert arrived.tobytes() == b"\x05" * 1000


def test_frames_that_were_cut_are_joined() -> None:
    memory = madl.allocate(1000)
    memory.copy_from(bytes(range(250)) * 4)
    header, [frame] = serialize(memory)

    arrived = deserialize(header, [frame[:300], bytes(frame[300:301]), frame[301:]])

    assert arrived.tobytes() == memory.tobytes()


def test_slices_and_no_bytes_are_sent_too() -> None:
    memory = madl.allocate(100)
    memory.fill(1)

    assert deserialize(*serialize(memory[10:20])).tobytes() == b"\x01" * 10
    assert deserialize(*serialize(madl.allocate(0))).nbytes == 0


def test_freed_memory_is_not_sent() -> None:
    memory = madl.allocate(100)
    memory.free()

    with pytest.raises(TypeError, match="Could not serialize") as caught:
        serialize(memory, on_error="raise")

    assert isinstance(caught.value.__cause__, madl.FreedMemoryError)


def test_dask_knows_how_large_a_memory_is() -> None:
    assert sizeof(madl.allocate(3 * MIB)) == 3 * MIB


def test_a_report_is_a_table() -> None:
    device = WorkerDevice("tcp://127.0.0.1:4000", "cpu", 8 * MIB, MIB, 1, 2, 3, None)
    bare = WorkerDevice("tcp://127.0.0.1:4000", "cuda:0", 8 * MIB, MIB)
    console = Console(width=80, force_terminal=False)

    with console.capture() as capture:
        console.print(Report((device, bare), {"tcp://127.0.0.1:5000": "[a] broken"}))

    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert [line for line in lines if line.startswith("127.")] == [
        "127.0.0.1:4000 cpu 1 B 2 B 3 B - 1.0 MiB",
        "127.0.0.1:4000 cuda:0 - - - - 1.0 MiB",
        "127.0.0.1:5000 [a] broken",
    ]


def test_a_plugin_that_was_not_set_up_can_be_torn_down() -> None:
    class Worker:
        metrics: dict[str, object] = {}  # noqa: RUF012  # of one test

    PoolPlugin().teardown(Worker())
