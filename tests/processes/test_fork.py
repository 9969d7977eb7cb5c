"""Forked children have the parent's memory, and their own pool from then on."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import madl
from madl import Memory, Pool
from tests.programs import output_of, run_as_file

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

FORKS = int(os.environ.get("TEST_MADL_FORKS", "50"))

# From Python 3.12 a fork beside other threads warns; here it is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def status_of_child(work: Callable[[], object], *, timeout_s: float = 20) -> int:
    """Run ``work`` in a forked child; return 0 when it did not raise."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.fixture
def busy_pool() -> Iterator[Pool]:
    """Return a pool that three other threads are in all the time."""
    pool = Pool("cpu", page_size="64 KiB")
    stop = threading.Event()

    def work(seed: int) -> None:
        held: list[Memory] = []
        turn = seed
        while not stop.is_set():
            turn += 1
            held.append(pool.allocate(turn * 7919 % 60_000, tag="busy"))
            if len(held) > 30:
                del held[turn % 30]
            if turn % 100 == 0:
                pool.trim()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    yield pool
    stop.set()
    for thread in threads:
        thread.join()


def use(pool: Pool) -> None:
    held = [pool.allocate(nbytes * 1000, tag="child") for nbytes in range(50)]
    for memory in held:
        memory.fill(7)
        assert memory.tobytes() == b"\x07" * memory.nbytes
    for memory in held[::2]:
        memory.free()
    pool.check()
    pool.trim()
    pool.check()


def test_children_use_a_pool_that_other_threads_were_in(busy_pool: Pool) -> None:
    statuses = [status_of_child(lambda: use(busy_pool)) for _ in range(FORKS)]

    assert statuses == [0] * FORKS
    use(busy_pool)


def test_threads_may_fork_at_once(busy_pool: Pool) -> None:
    statuses: list[int] = []
    others = [Pool("sim") for _ in range(5)]

    def fork() -> None:
        for _ in range(8):
            statuses.append(status_of_child(lambda: use(busy_pool)))

    threads = [threading.Thread(target=fork) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(others) == 5
    assert statuses == [0] * 32
    use(busy_pool)


def test_a_child_has_a_copy_of_the_content() -> None:
    pool = Pool("cpu")
    memory = pool.allocate(1 << 20)
    memory.fill(1)

    def work() -> None:
        assert memory.tobytes() == b"\x01" * (1 << 20)
        memory.fill(2)
        memory.free()
        pool.close()

    assert status_of_child(work) == 0
    assert memory.tobytes() == b"\x01" * (1 << 20)
    pool.check()


def test_a_view_in_a_child_keeps_the_block() -> None:
    pool = Pool("cpu")
    view = pool.allocate(100).memoryview()
    view[:] = b"v" * 100

    def work() -> None:
        for _ in range(100):
            pool.allocate(100).fill(0)
        assert view.tobytes() == b"v" * 100
        assert pool.stats().live_nbytes == 100

    assert status_of_child(work) == 0


def test_default_pools_work_in_a_child_whoever_was_making_one() -> None:
    # Python's own locks of imports are never free in a child again.
    madl.default_pool("sim").close()
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            madl.default_pool("sim").close()

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    statuses = [
        status_of_child(lambda: madl.default_pool("sim").allocate(8)) for _ in range(20)
    ]
    stop.set()
    for thread in threads:
        thread.join()

    assert statuses == [0] * 20


def test_a_child_of_a_child_works_too() -> None:
    pool = Pool("cpu")
    use(pool)

    def work() -> None:
        use(pool)
        assert status_of_child(lambda: use(pool)) == 0

    assert status_of_child(work) == 0


BEFORE_FORK = """
import os
hold = []
# Registered before madl's own, so it runs when the locks are held.
os.register_at_fork(before=lambda: hold.append(hold[0].allocate(123_456)))
import madl
hold.append(madl.Pool("cpu"))
child = os.fork()
hold[0].check()
assert hold[1].nbytes == 123_456
hold[0].allocate(5_000_000).fill(1)
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0
"""


def test_what_runs_before_a_fork_may_allocate() -> None:
    assert output_of("-c", BEFORE_FORK) == ""


def test_a_pool_that_is_dropped_while_a_fork_holds_its_lock_ends_in_silence() -> None:
    code = """
import os
hold = []
os.register_at_fork(before=hold.clear)  # before madl's own, as above
import madl
hold.append(madl.Pool("sim"))
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0
"""
    done = run_as_file(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_with_every_start_method(method: str) -> None:
    code = f"""
import multiprocessing
import madl

pool = madl.Pool("cpu")
held = [pool.allocate(1000) for _ in range(10)]

def work(nbytes):
    return len(madl.allocate(nbytes).tobytes()) + len(pool.allocate(5).tobytes())

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as workers:
        assert workers.map(work, [10, 20, 30]) == [15, 25, 35]
    pool.check()
"""
    done = run_as_file(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
