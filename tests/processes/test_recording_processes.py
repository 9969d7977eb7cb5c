"""What a recording leaves when its process is killed, forks or runs threads."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import madl
from madl import Pool
from madl.diagnostics import open_trace, recording

# From Python 3.12 a fork beside other threads warns; here it is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

PROGRAM = """
import sys, madl
pool = madl.Pool("sim")
with madl.record(sys.argv[1], name="victim", stacks=int(sys.argv[2])) as recorder:
    held = [pool.allocate(n, tag="weights") for n in range(100)]
    recorder.mark("step 1")
    for n in range(int(sys.argv[3])):
        pool.allocate(n).free()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("stacks", [0, 1])
@pytest.mark.parametrize("pairs", [0, 20_000])
def test_what_a_killed_process_recorded_is_read_to_the_last_event(
    stacks: int, pairs: int, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace.gz"
    command = [sys.executable, "-c", PROGRAM, str(path), str(stacks), str(pairs)]
    victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert victim.stdin is not None
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"ready" + os.linesep.encode()

    victim.kill()
    victim.wait()
    victim.stdin.close()
    victim.stdout.close()

    trace = open_trace(tmp_path / "run.trace.gz.journal")
    assert (trace.name, trace.allocations, trace.frees) == (
        "victim",
        100 + pairs,
        pairs,
    )
    assert trace.markers == ((100, "step 1"),)
    assert trace.tags == (None, "weights")
    assert not path.exists()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
@pytest.mark.parametrize("stacks", [0, 1])
def test_a_child_leaves_its_parents_recording_alone(
    stacks: int, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace.gz"
    pool = Pool("sim")
    with madl.record(path, stacks=stacks) as recorder:
        kept = pool.allocate(7)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(40_000):  # more than the ring has room for
                    pool.allocate(8).free()
                kept.free()
                recorder.finish()
                with madl.record(tmp_path / "child.trace.gz"):
                    pool.allocate(9).free()
                gc.collect()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        pool.allocate(5).free()

    assert list(open_trace(path).nbytes_of) == [7, 5]
    assert list(open_trace(tmp_path / "child.trace.gz").nbytes_of) == [9]


@needs_fork
@pytest.mark.parametrize("stacks", [0, 1])
def test_a_child_that_leaves_the_block_ends_nobodys_recording(
    stacks: int, tmp_path: Path
) -> None:
    pool = Pool("sim")
    outer, inner = tmp_path / "outer.trace.gz", tmp_path / "inner.trace.gz"
    with madl.record(outer, stacks=stacks), madl.record(inner, stacks=stacks):
        held = [pool.allocate(7)]
        if os.fork() == 0:
            _leave(held)
        os.wait()
        held.clear()

    assert list(open_trace(outer).operations) == [0, ~0]
    assert list(open_trace(inner).operations) == [0, ~0]


def _leave(held: list[madl.Memory]) -> None:
    """Do as the child what unwinding both blocks does, and exit."""
    try:
        for recorder in list(recording._recorders):
            held.clear()
            recorder.finish()
    finally:
        os._exit(0)


@needs_fork
def test_a_child_forked_while_a_trace_is_written_leaves_it_alone(
    tmp_path: Path,
) -> None:
    pool = Pool("sim")
    for turn in range(10):
        path = tmp_path / f"{turn}.trace.gz"
        with madl.record(path):
            for nbytes in range(3000):
                pool.allocate(nbytes).free()
            forking = threading.Timer(0.004 * turn, _fork_and_exit)
            forking.start()
        forking.join()

        assert open_trace(path).frees == 3000
    assert len(list(tmp_path.iterdir())) == 10


def _fork_and_exit() -> None:
    child = os.fork()
    if child == 0:
        gc.collect()
        sys.exit()  # unwinds this thread: what it holds ends
    os.waitpid(child, 0)


@pytest.mark.parametrize("stacks", [0, 1])
def test_threads_record_all_they_do(stacks: int, tmp_path: Path) -> None:
    path = tmp_path / "run.trace.gz"
    pool = Pool("sim")

    def work(seed: int) -> None:
        held: list[madl.Memory] = []
        for turn in range(2000):
            held.append(pool.allocate((seed + turn) % 9 * 1000, tag=f"t{seed}"))
            if turn % 3:
                held.pop(turn % len(held))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    with madl.record(path, stacks=stacks):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = open_trace(path)
    assert (trace.allocations, trace.frees) == (8000, 8000)
    assert trace.tags[0] is None
    assert set(trace.tags[1:]) == {"t0", "t1", "t2", "t3"}
    assert pool.stats().live_nbytes == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_a_signal_handler_that_allocates_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.trace.gz"
    pool = Pool("sim")
    ran: list[int] = []

    def handle(*_: object) -> None:
        ran.append(1)
        pool.allocate(1234).free()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with madl.record(path, stacks=1):
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            while len(ran) < 20:
                pool.allocate(8).free()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)

    trace = open_trace(path)
    assert list(trace.nbytes_of).count(1234) == len(ran)
    assert trace.allocations == trace.frees
