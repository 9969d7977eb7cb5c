"""Let the buffers of ``cuda.core`` come from a pool with a limit.

    python examples/cuda-core/buffers.py

It needs cuda-core and a CUDA device.
"""

from cuda.core import Device

import madl
from madl.integrations.cuda_core import memory_resource

STEPS = 50


def main() -> None:
    """Allocate, fill and close buffers in one stream."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    with madl.Pool("cuda:0", limit="64 MiB") as pool:
        device.memory_resource = memory_resource(pool)
        for _ in range(STEPS):
            one = device.allocate(1_000_000, stream=stream)
            other = device.allocate(2_000_000, stream=stream)
            one.fill(0, stream=stream)
            other.fill(1, stream=stream)
            one.close(stream)
            other.close(stream)
        stream.sync()
        stats = pool.stats()
        print(f"buffers that came from the pool: {stats.allocation_count}")
        print(f"committed for them: {stats.committed_nbytes}")
        print(f"bytes live now: {stats.live_nbytes}")


if __name__ == "__main__":
    main()
