"""Let the arrays of a CuPy program come from a pool with a limit.

    python examples/cupy/arrays.py

It needs CuPy and a CUDA device.
"""

import cupy

import madl
from madl.integrations.cupy import PoolAllocator, memory_of


def main() -> None:
    """Make arrays, and look at where they lie."""
    with madl.Pool("cuda:0", limit="64 MiB") as pool:
        # Without a stream, it is the one that is current when an array is made.
        allocator = PoolAllocator(pool, cupy.cuda.Stream.null, tag="arrays")
        cupy.cuda.set_allocator(allocator)
        arrays = [cupy.empty((1000, 250), "float32") for _ in range(10)]
        print(f"device: {memory_of(arrays[0]).device}")
        print(f"tagged: {pool.stats().tags['arrays'].live_nbytes}")
        try:
            cupy.empty(100_000_000, "uint8")
        except MemoryError as error:
            print(f"{type(error).__name__}: {error.report.requested_nbytes}")
        arrays.clear()
        print(f"bytes live now: {pool.stats().live_nbytes}")


if __name__ == "__main__":
    main()
