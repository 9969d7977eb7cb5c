"""Export of memory to array libraries in place: DLPack, CUDA's array interface.

DLPack's capsules are made by a library that does so natively, NumPy or the backend's:
a deleter in Python code would replace an exception that is in flight when the last
importer ends.
"""

from typing import Any, cast

from madl.backends.protocol import (
    Capability,
    CudaArrayBackend,
    DlpackBackend,
    DlpackExporter,
    StreamOrderedBackend,
)
from madl.errors import MissingCapabilityError
from madl.hotpath import Memory, pool_of
from madl.memory.place import backend_of, is_plain_host, locate, pin, uncut
from madl.memory.views import as_array, shown_root

CPU = (1, 0)
"""DLPack's name of host memory: ``kDLCPU``, and the number of the device."""

UNORDERED = -1
"""What a DLPack importer passes as its stream that sees to the order itself."""


def cuda_array_interface(memory: Memory) -> dict[str, Any]:
    """Return CUDA's array interface, version 3, with the stream that owns the memory.

    It tells an address, so what imports it keeps the handle, but ``free()`` does not
    wait for it.

    Raises:
        AttributeError: The memory is not CUDA's.
    """
    if Capability.CUDA_ARRAY not in pool_of(memory).capabilities:
        raise AttributeError(
            f"memory of {pool_of(memory).device} has no __cuda_array_interface__"
        )
    backend = cast("CudaArrayBackend", backend_of(memory))
    return {
        "version": 3,
        "shape": (memory.nbytes,),
        "typestr": "|u1",
        "data": (memory.address, False),
        "strides": None,
        "stream": backend.stream_handle(memory.stream),
    }


def dlpack_device(memory: Memory) -> tuple[int, int]:
    """Return what DLPack calls the device.

    Raises:
        MissingCapabilityError: DLPack has no number for it, or madl no exporter.
    """
    locate(memory, "__dlpack_device__()")
    if is_plain_host(memory):
        return CPU
    return _exporter(memory).__dlpack_device__()


def dlpack(memory: Memory, *, stream: object = None, **options: Any) -> object:  # noqa: ANN401  # what importers ask for
    """Return a capsule over the bytes, which keeps the block live.

    Args:
        memory: What is exported, as one dimension of ``uint8``.
        stream: The importer's, whose work comes after what is queued already. The
            block is not reused while that stream still uses it.
        **options: ``max_version``, ``dl_device`` and ``copy``, those that were given:
            exporters of older versions know none of them.
    """
    locate(memory, "__dlpack__()")
    if is_plain_host(memory):
        return as_array(memory).__dlpack__(stream=stream, **options)
    exported = _exporter(memory)
    if stream != UNORDERED and memory.nbytes:
        _share(memory, stream)
    # The exporter would accept the stream and ignore it: the order is made here.
    return exported.__dlpack__(stream=UNORDERED, **options)


def _share(memory: Memory, stream: object) -> None:
    """Let a stream use a memory too: from now on, and until it is done with it."""
    backend = cast("StreamOrderedBackend", backend_of(memory))
    owner = memory.stream
    if backend.stream_key(stream) != backend.stream_key(owner):
        backend.wait(stream, backend.record(owner))
        memory.record_stream(stream)


def _exporter(memory: Memory) -> DlpackExporter:
    if Capability.DLPACK not in pool_of(memory).capabilities:
        raise MissingCapabilityError(
            pool_of(memory).device, "DLPack", "copy to host memory with madl.copy()"
        )
    backend = cast("DlpackBackend", backend_of(memory))
    owner = _keeper_of(memory) if memory.nbytes else memory
    return backend.buffer_over(memory.address, memory.nbytes, owner)


def _keeper_of(memory: Memory) -> object:
    """Return what keeps a block for all views of it, whatever is freed."""
    memory = uncut(memory)
    if Capability.HOST_ACCESS in pool_of(memory).capabilities:
        return shown_root(memory)  # views of the CPU can use it too
    return pin(memory, "__dlpack__()")
