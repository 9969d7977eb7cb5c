"""How much memory does the pool itself take for a block?"""

from pathlib import Path
from resource import getpagesize

from benchmarks.answer import Answer, Table
from benchmarks.worker import Worker
from madl import Memory, Pool, core, hotpath
from madl.core.skiplist import SkipList

COUNT = 400_000
NBYTES = 4096
STATM = Path("/proc/self/statm")


def resident_nbytes() -> int:
    """Return the memory of this process."""
    return int(STATM.read_text().split()[1]) * getpagesize()


def live_block() -> tuple[float, int]:
    """Return the bytes of a live block with its handle, and of the handle alone."""
    pool = Pool("sim")
    held: list[Memory | None] = [first := pool.allocate(NBYTES), *[None] * COUNT]
    before = resident_nbytes()
    for i in range(1, COUNT + 1):
        held[i] = pool.allocate(NBYTES)
    return (resident_nbytes() - before) / COUNT, first.__sizeof__()


def indexed_block() -> float:
    """Return the bytes of a free block in the index."""
    index = SkipList()
    blocks = [(i * 2 * NBYTES, NBYTES) for i in range(COUNT)]
    before = resident_nbytes()
    for offset, nbytes in blocks:
        index.put(offset, nbytes)
    return (resident_nbytes() - before) / COUNT


def run(*, quick: bool) -> Answer:
    """Make many blocks, each kind in a process of its own."""
    question = "How much memory does the pool itself take for a block?"
    if not STATM.exists():
        return Answer(question, (), notes=(f"not measured: no {STATM}",))
    with Worker() as worker:
        live, handle = worker.call(f"{__name__}:live_block")
    with Worker() as worker:
        indexed = worker.call(f"{__name__}:indexed_block")
    is_compiled = core.IS_COMPILED and hotpath.IS_COMPILED
    return Answer(
        question,
        (
            Table(
                "bytes a block",
                ("", "bytes"),
                (
                    ("live: its handle and its record", live),
                    ("free in a bin: its record", live - handle),
                    ("free in the index", indexed),
                ),
            ),
        ),
        {"bytes a live block": round(live), "bytes a free block": round(indexed)}
        if is_compiled
        else {},
        (
            f"Growth of the resident memory by {COUNT:,} blocks, device sim; what the "
            "C library's and Python's own allocators waste is in it. A handle has "
            f"{handle} bytes.",
        ),
    )
