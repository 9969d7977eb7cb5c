"""What sharing costs: `python -m benchmarks.sharing`, with --json for one object.

Times of a token are of this process alone; a queue's are of one transfer from a worker
to here, of the same bytes, by the side of what pickles them.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from statistics import median
from typing import Any

import numpy as np

import madl

MIB = 1 << 20
SIZES = (1, 16, 64)  # MiB
ROUNDS = 30


def main() -> None:
    """Measure, and print a table or one object."""
    rows = [measure(size * MIB) for size in SIZES]
    if "--json" in sys.argv:
        print(json.dumps(rows))
        return
    print(*(f"{name:>22}" for name in rows[0]))
    for row in rows:
        print(*(f"{figure:>22.1f}" for figure in row.values()))


def measure(nbytes: int) -> dict[str, float]:
    """Return microseconds for memory of one size."""
    with madl.Pool("shared") as pool:
        memory = pool.allocate(nbytes)
        token = madl.share(memory)
        return {
            "MiB": nbytes / MIB,
            "allocate + free": usual(lambda: pool.allocate(nbytes).free()),
            "share": usual(lambda: madl.share(memory)),
            "attach + free": usual(lambda: token.attach().free()),
            "new block by queue": transfer(send_block, nbytes),
            "array by queue": transfer(send_array, nbytes),
        }


def usual(work: Callable[[], object]) -> float:
    """Return the median microseconds of a call."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - started)
    return median(times) / 1000


def transfer(send: Callable[..., None], nbytes: int) -> float:
    """Return the median microseconds from asking a worker for bytes to having them."""
    context = multiprocessing.get_context("spawn")
    asked, answered = context.SimpleQueue(), context.SimpleQueue()
    worker = context.Process(target=answer, args=(send, nbytes, asked, answered))
    worker.start()

    def turn() -> None:
        asked.put(True)
        received = answered.get()
        if not isinstance(received, np.ndarray):
            received.attach().as_array()

    turn()
    taken = usual(turn)
    asked.put(None)
    worker.join()
    return taken


def answer(
    send: Callable[..., None],
    nbytes: int,
    asked: "SimpleQueue[Any]",
    queue: "SimpleQueue[Any]",
) -> None:
    """Send what was filled beforehand, each time that it is asked for."""
    memory = madl.allocate(nbytes, device="shared")
    memory.fill(1)
    while asked.get():
        send(memory, queue)


def send_block(memory: madl.Memory, queue: "SimpleQueue[Any]") -> None:
    """Send a token."""
    queue.put(madl.share(memory))


def send_array(memory: madl.Memory, queue: "SimpleQueue[Any]") -> None:
    """Send the bytes."""
    queue.put(memory.as_array())


if __name__ == "__main__":
    main()
