"""Uses of the integrations that are right, whether their libraries are there or not.

They are checked, not run. What has a type of such a library is unknown without it, and
has no place here.
"""

from typing import assert_type

import madl
import madl.integrations.cupy
import madl.integrations.numba
import madl.integrations.pyopencl
import madl.integrations.reclaimers
import madl.integrations.torch
from madl.integrations.cuda_pool import CudaPool, CudaPoolStats


def allocators(pool: madl.Pool) -> None:
    madl.integrations.numba.use_pool(pool, madl.default_pool("cuda_pinned:0"))
    assert_type(madl.integrations.numba.pool_of("cuda:0"), madl.Pool)
    cupy = madl.integrations.cupy.PoolAllocator(pool)
    assert_type(cupy, madl.integrations.cupy.PoolAllocator)
    opencl = madl.integrations.pyopencl.PoolAllocator(pool)
    assert_type(opencl, madl.integrations.pyopencl.PoolAllocator)
    pool.on_out_of_memory(madl.integrations.reclaimers.release_other_caches)


def torch() -> None:
    with madl.integrations.torch.use_pool(CudaPool("cuda:0", limit="8 GiB")) as pool:
        assert_type(pool, CudaPool)
        assert_type(pool.stats(), CudaPoolStats)
        assert_type(pool.trim(), int)
    with madl.integrations.torch.use_pool() as pool:
        pool.check()
