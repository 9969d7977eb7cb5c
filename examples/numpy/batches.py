"""Normalise batches of images: plain NumPy, whose large arrays come from a pool.

    python examples/numpy/batches.py

It needs a compiled madl; ``MADL_COMPILE=1 pip install madl`` makes sure of that.
"""

import numpy as np

import madl
from madl.integrations.numpy import route

BATCHES = 5


def normalise(batch: np.ndarray) -> float:
    """Do what programs do: one temporary array after the other."""
    centred = batch - batch.mean(axis=(1, 2), keepdims=True)
    scaled = centred / (batch.std(axis=(1, 2), keepdims=True) + 1e-6)
    return float(np.clip(scaled, -1, 1).sum())


def main() -> None:
    """Run every batch with and without the pool."""
    random = np.random.default_rng(0)
    batch = random.random((16, 512, 512), np.float32)
    expected = normalise(batch)
    pool = madl.Pool("cpu", limit="256 MiB")
    asked = []
    with route("1 MiB", pool):
        for _ in range(BATCHES):
            before = pool.stats().backend_calls
            assert normalise(batch) == expected
            asked.append(pool.stats().backend_calls - before)
    stats = pool.stats()
    print(f"{stats.allocation_count} arrays came from the pool")
    print(f"the system was asked for memory in the first batch: {asked[0] > 0}")
    print(f"and in the {BATCHES - 1} others: {any(asked[1:])}")
    print(f"bytes live now: {stats.live_nbytes}")


if __name__ == "__main__":
    main()
