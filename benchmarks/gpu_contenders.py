"""Who takes memory of a GPU and gives it back: madl, its peers, and the driver."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from madl import Memory, Pool
from madl.backends.cuda import CudaBackend

_RESERVED_HIGH = 6  # CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
_NON_BLOCKING = 1


@dataclass(frozen=True)
class Contender:
    """One way to take memory of ``cuda:0`` and to give it back."""

    allocate: Callable[[int], Any]
    free: Callable[[Any], object]
    taken_nbytes: Callable[[], int | None] = lambda: None
    """The most that was taken from the driver; None where nobody counts it."""
    finish: Callable[[], object] = lambda: None
    """Return when what is queued is done."""
    empty: Callable[[], object] = lambda: None
    """Give back what is kept."""


def madl_pool(memory: str | None = None, **options: Any) -> Contender:  # noqa: ANN401  # Pool's
    """Return a pool of madl."""
    pool = Pool(CudaBackend(0, memory=memory), **options)
    return Contender(
        pool.allocate,
        Memory.free,
        lambda: pool.stats().committed_high_water_nbytes,
        empty=pool.trim,
    )


def driver_alone() -> Contender:
    """Return ``cuMemAlloc`` and ``cuMemFree``."""
    driver = _driver()

    def allocate(nbytes: int) -> Any:  # noqa: ANN401  # a CUdeviceptr
        status, address = driver.cuMemAlloc(nbytes)
        return _unless_refused(status, address)

    return Contender(allocate, driver.cuMemFree)


def driver_async() -> Contender:
    """Return ``cuMemAllocAsync`` and ``cuMemFreeAsync``, which keep what is freed."""
    driver = _driver()
    _, stream = driver.cuStreamCreate(_NON_BLOCKING)
    status, pool = driver.cuDeviceGetDefaultMemPool(0)
    if int(status):
        raise ImportError("the device has no stream-ordered allocation")
    names = driver.CUmemPool_attribute
    threshold = names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(1 << 62))
    high = names(_RESERVED_HIGH)

    def allocate(nbytes: int) -> Any:  # noqa: ANN401  # as above
        status, address = driver.cuMemAllocAsync(nbytes, stream)
        return _unless_refused(status, address)

    def empty() -> None:
        driver.cuStreamSynchronize(stream)
        driver.cuMemPoolTrimTo(pool, 0)
        driver.cuMemPoolSetAttribute(pool, high, driver.cuuint64_t(0))

    return Contender(
        allocate,
        lambda address: driver.cuMemFreeAsync(address, stream),
        lambda: int(driver.cuMemPoolGetAttribute(pool, high)[1]),
        lambda: driver.cuStreamSynchronize(stream),
        empty,
    )


def cupy_pool() -> Contender:
    """Return CuPy's pool."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    pool.malloc(512)
    return Contender(pool.malloc, _drop, pool.total_bytes, empty=pool.free_all_blocks)


def torch_tensors() -> Contender:
    """Return PyTorch's tensors of bytes, which come from its caching allocator."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("this PyTorch sees no GPU")

    def empty() -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    return Contender(
        lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cuda:0"),
        _drop,
        torch.cuda.max_memory_reserved,
        torch.cuda.synchronize,
        empty,
    )


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "madl": madl_pool,
    "madl, segments": lambda: madl_pool("segments"),
    "cuMemAlloc": driver_alone,
    "cuMemAllocAsync": driver_async,
    "CuPy pool": cupy_pool,
    "PyTorch tensor": torch_tensors,
}
"""What makes each; making one may raise, where it is missing or does not work."""


def _driver() -> Any:  # noqa: ANN401  # cuda.bindings may be missing
    """Return the driver's calls, with the context of the device current."""
    device = CudaBackend(0)._device
    driver = device.calls.driver
    driver.cuCtxSetCurrent(device.context)
    return driver


def _unless_refused(status: Any, address: Any) -> Any:  # noqa: ANN401  # the driver's
    if int(status):
        raise MemoryError(f"the driver refused with {int(status)}")
    return address


def _drop(_: object) -> None:
    """Let a handle go: it is dropped when this returns."""
