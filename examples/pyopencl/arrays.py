"""Let the arrays of a PyOpenCL program come from a pool with a limit.

    python examples/pyopencl/arrays.py

It needs PyOpenCL and a driver; PoCL will do: apt-get install pocl-opencl-icd.
"""

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import madl
from madl.backends.opencl import OpenclBackend
from madl.integrations.pyopencl import PoolAllocator, memory_of


def main() -> None:
    """Compute with temporaries, and look at where they lay."""
    queue = cl.CommandQueue(cl.create_some_context(interactive=False))
    with madl.Pool(OpenclBackend(queue), limit="64 MiB") as pool:
        allocator = PoolAllocator(pool, tag="arrays")
        x = cla.arange(queue, 1_000_000, dtype=np.float32, allocator=allocator)
        for _ in range(10):
            y = 2 * x + 1  # the result and its temporary have the allocator of x
        print(f"last: {int(y.get()[-1])}")
        print(f"tag: {memory_of(y).tag}")
        print(f"bytes live: {pool.stats().live_nbytes}")
        try:
            cla.empty(queue, 1 << 27, np.uint8, allocator=allocator)
        except MemoryError as error:
            print(f"{type(error).__name__}: {error.report.requested_nbytes}")
        del x, y
        queue.finish()
        print(f"and after: {pool.stats().live_nbytes}")


if __name__ == "__main__":
    main()
