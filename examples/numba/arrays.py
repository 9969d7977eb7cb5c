"""Let the CUDA arrays of a Numba program come from a pool with a limit.

    python examples/numba/arrays.py

It needs numba-cuda and a CUDA device. Without a change to the program,
``NUMBA_CUDA_MEMORY_MANAGER=madl.integrations.numba`` does it too.
"""

import numpy as np
from numba import cuda

import madl
from madl.integrations.numba import use_pool

STEPS = 50


def main() -> None:
    """Send arrays of two sizes to the device and back."""
    with madl.Pool("cuda:0", limit="64 MiB") as pool:
        use_pool(pool)
        for step in range(STEPS):
            sent = np.full(1_000_000 + step % 2, step, np.float32)
            array = cuda.to_device(sent)
            assert (array.copy_to_host() == sent).all()
            del array
        stats = pool.stats()
        print(f"arrays that came from the pool: {stats.allocation_count}")
        print(f"calls of the driver for them: {stats.backend_calls < 10}")
        print(f"free of the limit: {cuda.current_context().get_memory_info().free}")


if __name__ == "__main__":
    main()
