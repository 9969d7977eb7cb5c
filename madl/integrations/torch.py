"""PyTorch over memory of madl: tensors without a copy, and CUDA tensors from a pool."""

import contextlib
import ctypes
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from madl.errors import MissingCapabilityError
from madl.hotpath import Memory
from madl.integrations.arrays import Shape, dimensions_of
from madl.integrations.cuda_pool import FREE, MALLOC, RECORD_STREAM, CudaPool
from madl.integrations.peers import import_peer
from madl.memory.place import is_plain_host

if TYPE_CHECKING:
    import torch

_kept: dict[int, tuple[Any, Any]] = {}
"""By device: the allocator and the ``MemPool``, which have to outlive all tensors."""


def tensor(
    memory: Memory, dtype: "torch.dtype | None" = None, shape: Shape | None = None
) -> "torch.Tensor":
    """Return a tensor over a memory, without a copy.

    Tensors own its block: it goes back to the pool with the last of them, also after
    ``memory.free()``.

    Args:
        memory: Of the host, or of a CUDA device.
        dtype: ``torch.uint8`` when None.
        shape: An int or several; all of the memory as one dimension when None.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: ``dtype`` is another library's, or ``shape`` no int and no several.
        ValueError: The memory is no whole number of elements, or too small.
    """
    torch = import_peer("torch", "torch")
    element = torch.uint8 if dtype is None else dtype
    if not isinstance(element, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    count, rest = divmod(memory.nbytes, element.itemsize)
    if shape is None:
        if rest:
            raise ValueError(
                f"{memory.nbytes} bytes are no whole number of {element}, which takes "
                f"{element.itemsize}; pass a shape"
            )
        shape = count
    dimensions = dimensions_of(shape)
    wanted = math.prod(dimensions)
    if wanted > count:
        raise ValueError(
            f"a tensor {dimensions} of {element} needs {wanted * element.itemsize} "
            f"bytes, the memory has {memory.nbytes}"
        )
    flat = _flat(torch, memory, element, wanted)
    return flat if len(dimensions) == 1 else flat.reshape(dimensions)


def _flat(torch: Any, memory: Memory, element: Any, count: int) -> Any:  # noqa: ANN401  # PyTorch is looked up late
    if not count:
        return torch.empty(0, dtype=element)
    if is_plain_host(memory):
        return torch.frombuffer(memory.memoryview(), dtype=element, count=count)
    exported = torch.from_dlpack(memory[: count * element.itemsize])
    return exported.view(element)


def allocator(pool: CudaPool) -> "torch.cuda.memory.CUDAPluggableAllocator":
    """Return PyTorch's handle of a pool's C functions.

    ``torch.cuda.memory.change_current_allocator`` takes it, before the first CUDA
    tensor. ``use_pool`` is the safer way: in that one PyTorch does not look whether an
    allocation failed.

    Raises:
        ImportError: PyTorch is not installed.
        MissingCapabilityError: This PyTorch was built without CUDA.
    """
    torch = import_peer("torch", "torch")
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise MissingCapabilityError(
            pool.device,
            f"allocators in PyTorch {torch.__version__}, which is built without CUDA",
            "a build of PyTorch for CUDA",
        )
    made = torch.cuda.memory.CUDAPluggableAllocator(pool.library, MALLOC, FREE)
    record = getattr(ctypes.CDLL(pool.library), RECORD_STREAM)
    made.allocator().set_record_stream_fn(ctypes.cast(record, ctypes.c_void_p).value)
    return made


@contextlib.contextmanager
def use_pool(pool: CudaPool | None = None) -> Iterator[CudaPool]:
    """Let CUDA tensors that this thread makes in the ``with`` block come from a pool.

    PyTorch's caching allocator asks the pool for its segments, and keeps them for
    tensors that are made so later: a ``torch.cuda.MemPool`` has to outlive its tensors.

    Args:
        pool: Of the device that the tensors are on; that of ``"cuda:0"`` when None.

    Raises:
        ImportError: PyTorch is not installed.
        MissingCapabilityError: PyTorch was built without CUDA, or madl without C.
    """
    pool = CudaPool.of() if pool is None else pool
    torch = import_peer("torch", "torch")
    if pool.index not in _kept:
        made = allocator(pool)
        _kept[pool.index] = made, torch.cuda.MemPool(made.allocator())
    with torch.cuda.use_mem_pool(_kept[pool.index][1], device=pool.index):
        yield pool
