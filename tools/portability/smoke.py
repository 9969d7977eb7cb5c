"""Use a pool of host memory for real, with nothing but Python's own library.

Prints one line about the machine. A byte that is not what was written, or a pool that
does not add up, ends it with a traceback.
"""

import ctypes
import mmap
import random
import sys

from madl import Memory, OutOfMemoryError, Pool
from madl.backends.cpu import CpuBackend

STEPS = 400
MOST_LIVE = 24


def fill(memory: Memory, byte: int) -> None:
    """Write to the first and the last byte, and to one of each OS page."""
    for offset in (*range(0, memory.nbytes, mmap.PAGESIZE), memory.nbytes - 1):
        ctypes.memset(memory.address + offset, byte, 1)


def verify(memory: Memory, byte: int) -> None:
    """Fail if one of them has changed."""
    for offset in (*range(0, memory.nbytes, mmap.PAGESIZE), memory.nbytes - 1):
        found = ctypes.string_at(memory.address + offset, 1)[0]
        assert found == byte, f"{found} for {byte} at {memory.address + offset:#x}"


def walk(pool: Pool) -> None:
    """Allocate and free in a seeded order."""
    draw = random.Random(1)
    live: list[tuple[Memory, int]] = []
    for step in range(STEPS):
        if live and (len(live) > MOST_LIVE or draw.random() < 0.4):
            memory, byte = live.pop(draw.randrange(len(live)))
            verify(memory, byte)
            memory.free()
        else:
            memory = pool.allocate(int(2 ** draw.uniform(6, 22)))
            fill(memory, step % 251 + 1)
            live.append((memory, step % 251 + 1))
        if step % 100 == 99:
            pool.trim(keep=8 << 20)
            pool.check()
    for memory, byte in live:
        verify(memory, byte)
        memory.free()


def run_out(pool: Pool) -> None:
    """Ask for more than there is; the pool is as before."""
    try:
        pool.allocate(sys.maxsize)
    except OutOfMemoryError:
        pool.check()
    else:
        raise AssertionError(f"{sys.maxsize} bytes were given")


def main() -> None:
    """Run it all."""
    backend = CpuBackend()
    pool = Pool(backend)
    walk(pool)
    run_out(pool)
    assert pool.close().live_nbytes == 0
    sys.stdout.write(
        f"{ctypes.sizeof(ctypes.c_void_p) * 8} bits, {sys.byteorder}-endian, "
        f"OS pages of {mmap.PAGESIZE}, {backend.describe()['commit']}\n"
    )


if __name__ == "__main__":
    main()
