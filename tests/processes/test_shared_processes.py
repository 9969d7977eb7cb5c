"""Tokens on their way between processes that multiprocessing has started."""

import os
import sys

import pytest

from tests.programs import run_as_file

EXITS = int(os.environ.get("TEST_MADL_EXITS", "3"))
METHODS = ["spawn"] if sys.platform == "win32" else ["fork", "spawn", "forkserver"]

SENT = """
import multiprocessing
import sys
import madl

MIB = 1 << 20

def fill(token, value):
    token.attach().fill(value)

def fill_from_queue(tokens, done):
    for value in (1, 2, 3):
        token = tokens.get()
        token.attach().fill(value)
        done.put(value)

def fill_from_pipe(pipe):
    token = pipe.recv()
    token.attach().fill(9)
    pipe.send(token)  # sent on: back to where it came from
    pipe.recv()  # it has arrived

def total(token):
    return int(token.attach().as_array().sum())

def make(value):
    memory = madl.allocate(MIB, device="shared")
    memory.fill(value)
    return madl.share(memory)  # the memory itself is dropped here

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    pool = madl.Pool("shared")
    memory = pool.allocate(MIB)

    worker = context.Process(target=fill, args=(madl.share(memory), 7))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert memory.tobytes() == b"\\x07" * MIB

    tokens, done = context.Queue(), context.Queue()
    worker = context.Process(target=fill_from_queue, args=(tokens, done))
    worker.start()
    parts = [pool.allocate(MIB) for _ in range(3)]
    for part in parts:
        tokens.put(madl.share(part))
    assert [done.get(timeout=60) for _ in parts] == [1, 2, 3]
    worker.join()
    assert [part.tobytes()[-1] for part in parts] == [1, 2, 3]

    here, there = context.Pipe()
    worker = context.Process(target=fill_from_pipe, args=(there,))
    worker.start()
    here.send(madl.share(memory))
    back = here.recv()
    here.send("arrived")
    worker.join()
    assert back.attach().tobytes() == memory.tobytes() == b"\\x09" * MIB

    with context.Pool(2) as workers:
        assert workers.map(total, [madl.share(memory)] * 4) == [9 * MIB] * 4
        made = workers.map(make, [4, 5, 6], chunksize=1)
    # The workers that made it have ended.
    assert [token.attach().tobytes()[-1] for token in made] == [4, 5, 6]

    stats = pool.stats()
    assert stats.live_nbytes == 4 * MIB, stats
    pool.check()
"""


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_arguments_and_go_through_queues_pipes_and_pools(
    method: str,
) -> None:
    done = run_as_file(SENT, method)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ARGUMENT = """
import multiprocessing
import madl

def fill(token, value):
    token.attach().fill(value)

if __name__ == "__main__":
    memory = madl.allocate(1 << 20, device="shared")
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=fill, args=(madl.share(memory), 7))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert memory.tobytes() == b"\\x07" * (1 << 20)
"""


def test_a_spawned_process_takes_a_token_as_its_argument() -> None:
    done = run_as_file(ARGUMENT)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


EXECUTOR = """
import concurrent.futures
import multiprocessing
import madl

def total(token):
    return int(token.attach().as_array("int32").sum())

if __name__ == "__main__":
    array = madl.full(1000, 3, "int32", device="shared")
    memory = madl.allocate(4000, device="shared")
    memory.copy_from(array)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        futures = [executor.submit(total, madl.share(memory)) for _ in range(4)]
        assert [future.result() for future in futures] == [3000] * 4
"""


def test_an_executor_takes_tokens() -> None:
    done = run_as_file(EXECUTOR)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


INHERITED = """
import os
import madl

pool = madl.Pool("shared")
memory = pool.allocate(5000)
memory.fill(1)
view = memory.memoryview()
token = madl.share(memory)

child = os.fork()
if child == 0:
    assert memory.tobytes() == b"\\x01" * 5000
    token.attach()[0:2500].fill(2)  # no copy: it is shared with the parent
    del view
    memory.free()
    for _ in range(20):
        pool.allocate(5000).fill(9)  # never the parent's
    pool.trim()
    pool.check()
    pool.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert bytes(view) == b"\\x02" * 2500 + b"\\x01" * 2500
assert pool.stats().live_nbytes == 5000
pool.check()

# What was free when the child began is nobody's.
memory = pool.allocate(5000)
memory.free()
child = os.fork()
if child == 0:
    pool.allocate(5000).fill(3)
    os._exit(0)
fresh = pool.allocate(5000)
assert os.waitpid(child, 0)[1] == 0
assert fresh.tobytes() == bytes(5000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_shares_and_frees_nothing_of_its_parent() -> None:
    done = run_as_file(INHERITED)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


EXIT = """
import multiprocessing
import madl

def work(token, queue):
    global attached, view
    attached = token.attach()
    view = attached.memoryview()
    own = madl.allocate(1000, device="shared")
    kept.append(own)
    queue.put(madl.share(own))
    queue.close()
    queue.join_thread()
    turn.wait()

kept = []

def start(end, event):
    global turn
    turn = event
    work(*end)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue, turn = context.Queue(), context.Event()
    memory = madl.allocate(1 << 20, device="shared")
    array = memory.as_array("float32")
    worker = context.Process(target=start, args=((madl.share(memory), queue), turn))
    worker.start()
    received = queue.get(timeout=60).attach()
    received_view = received.memoryview()
    token = madl.share(received)
    turn.set()
"""


@pytest.mark.timeout(300)
def test_programs_end_in_silence_with_shared_memory_alive() -> None:
    for _ in range(EXITS):
        done = run_as_file(EXIT)

        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
