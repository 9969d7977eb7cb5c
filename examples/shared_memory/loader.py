"""Workers fill batches in shared memory; the trainer reads them without a copy.

    python examples/shared_memory/loader.py

The batches lie in a few slots that are shared once, at the start. What goes through
the queues afterwards is only the number of a slot, and whose turn it is.
"""

import multiprocessing
from collections.abc import Iterator
from itertools import islice
from multiprocessing.queues import Queue

import numpy as np

import madl
from madl.integrations.shared import Token

SHAPE = (32, 3, 128, 128)  # a batch of images
NBYTES = 4 * 32 * 3 * 128 * 128
WORKERS = 2
SLOTS = 2 * WORKERS


def work(tokens: list[Token], todo: "Queue", done: "Queue") -> None:
    """Fill the slot that comes with each number, until there is none."""
    slots = [token.attach().as_array("float32", SHAPE) for token in tokens]
    for slot, number in iter(todo.get, None):
        slots[slot][:] = number  # here a loader would read files and augment images
        done.put((slot, number))


def batches(count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each batch in the order in which they are ready."""
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    with madl.Pool("shared") as pool:
        held = [pool.allocate(NBYTES, tag="batches") for _ in range(SLOTS)]
        tokens = [madl.share(memory) for memory in held]
        workers = [
            context.Process(target=work, args=(tokens, todo, done))
            for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        numbers = iter(range(count))
        for slot, number in enumerate(islice(numbers, SLOTS)):
            todo.put((slot, number))
        for _ in range(count):
            slot, number = done.get()
            yield number, held[slot].as_array("float32", SHAPE)
            # The trainer is done with it: the slot may be filled again.
            if (following := next(numbers, None)) is not None:
                todo.put((slot, following))
        for _ in workers:
            todo.put(None)
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    total = 0.0
    for number, batch in batches(20):
        assert batch[0, 0, 0, 0] == batch[-1, -1, -1, -1] == number
        total += float(batch.mean())
    print(f"20 batches of {NBYTES >> 20} MiB, sum of their means {total:.0f}")
