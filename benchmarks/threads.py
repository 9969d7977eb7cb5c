"""Does a pool that several threads share keep its throughput?"""

import threading
import time
from collections.abc import Callable
from functools import partial

import benchmarks.contenders as make
from benchmarks.answer import Answer, Row, Table
from benchmarks.contenders import Pairs
from benchmarks.timing import in_turns, spread
from madl import Pool

THREADS = (1, 2, 4, 8)
NBYTES = 64 << 10
PAIRS = 200_000
MADL = "madl, one pool, .free()"


def contenders() -> tuple[dict[str, Pairs], list[str]]:
    """Return the loops that all threads run, and what is missing."""
    pairs = {
        MADL: make.freeing(Pool("cpu").allocate),
        "madl, one pool, dropped": make.dropping(Pool("cpu").allocate),
        "np.empty": make.numpy_pairs,
    }
    try:
        guarded = make.freeing(make.guarded_pool().allocate)
    except ImportError as error:
        return pairs, [f"guarded pool: not measured: {error}"]
    return {**pairs, "madl, one guarded pool, .free()": guarded}, []


def ns_a_pair(loop: Pairs, threads: int) -> float:
    """Return the time on the clock for all pairs of all threads, divided by them."""
    share = PAIRS // threads
    barrier = threading.Barrier(threads + 1)

    def work() -> None:
        barrier.wait()
        loop(NBYTES, share)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    started = time.perf_counter_ns()
    barrier.wait()
    for thread in running:
        thread.join()
    return (time.perf_counter_ns() - started) / (share * threads)


def run(*, quick: bool) -> Answer:
    """Share the same number of pairs among 1, 2, 4 and 8 threads."""
    pairs, notes = contenders()
    measures: dict[str, Callable[[], float]] = {
        f"{name} {threads}": partial(ns_a_pair, loop, threads)
        for name, loop in pairs.items()
        for threads in THREADS
    }
    results = in_turns(measures, rounds=7 if quick else 15)
    rows: list[Row] = [
        (name, *(spread(results[f"{name} {threads}"]) for threads in THREADS))
        for name in pairs
    ]
    least = {threads: min(results[f"{MADL} {threads}"]) for threads in THREADS}
    return Answer(
        "Does a pool that several threads share keep its throughput?",
        (
            Table(
                "ns on the clock a pair of 64 KiB, over all threads",
                ("threads", *map(str, THREADS)),
                tuple(rows),
            ),
        ),
        {"8 threads over 1, ns a pair": least[8] / least[1]},
        (*notes, "The ratio compares the least of the rounds: other programs run too."),
    )
