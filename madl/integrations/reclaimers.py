"""Reclaimers for ``pool.on_out_of_memory``: empty the caches of PyTorch and CuPy."""

import sys


def release_other_caches(nbytes: int) -> None:
    """Let PyTorch and CuPy give back to the device what they keep but do not use.

    Register it with ``pool.on_out_of_memory(release_other_caches)``. It empties the
    cache of ``torch.cuda``, and CuPy's default pools: that of the current device and
    that of pinned memory. Tensors and arrays in use are not touched. Neither library
    is imported, nor is CUDA initialized for PyTorch.

    Args:
        nbytes: What the pool needs. Ignored: neither library can give back a part.
    """
    try:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    finally:  # also after an error of PyTorch
        cupy = sys.modules.get("cupy")
        if cupy is not None:
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
