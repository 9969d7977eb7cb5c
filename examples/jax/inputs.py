"""Fill memory of a pool on the host and compute on it with JAX, without a copy.

    python examples/jax/inputs.py

It needs JAX, on the CPU; elsewhere JAX copies to its device.
"""

import jax
import jax.numpy as jnp
import numpy as np

import madl

ROWS = 1000


def main() -> None:
    """Let JAX read what NumPy wrote."""
    pool = madl.Pool("cpu", limit="64 MiB")
    with madl.use_pool(pool):
        inputs = madl.empty((ROWS, ROWS), "float32")
    np.multiply.outer(np.arange(ROWS), np.ones(ROWS), out=inputs)

    array = jax.dlpack.from_dlpack(inputs)

    means = jax.jit(lambda rows: jnp.mean(rows, axis=1))(array)
    print(f"copied: {array.unsafe_buffer_pointer() != inputs.ctypes.data}")
    print(f"mean of the last row: {means[-1]:.0f}")
    del inputs
    print(f"bytes live while JAX has them: {pool.stats().live_nbytes}")
    del array
    print(f"and after: {pool.stats().live_nbytes}")


if __name__ == "__main__":
    main()
