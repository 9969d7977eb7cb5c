"""Memory in the hands of any array library, by DLPack.

What it takes to be read elsewhere is left to a library that speaks it natively, a
kind of memory each: an exporter whose deleter is Python code would replace an
exception that is in flight when the last importer ends.
"""

from typing import Any

from madl.errors import MissingCapabilityError
from madl.hotpath import Memory
from madl.location import is_plain_host, locate
from madl.views import as_array

CPU = (1, 0)
"""DLPack's name of host memory: ``kDLCPU``, and the number of the device."""


def dlpack_device(memory: Memory) -> tuple[int, int]:
    """Return what DLPack calls the device.

    Raises:
        MissingCapabilityError: DLPack has no word for it, or nobody exports it.
    """
    locate(memory, "__dlpack_device__()")
    if is_plain_host(memory):
        return CPU
    raise _no_exporter(memory)


def dlpack(memory: Memory, stream: object, options: dict[str, Any]) -> object:
    """Return a capsule over the bytes, which keeps the block live.

    Args:
        memory: What is exported, as one dimension of ``uint8``.
        stream: The importer's, whose work comes after what is queued already.
        options: ``max_version``, ``dl_device`` and ``copy``, those that were given:
            exporters of older versions know none of them.
    """
    locate(memory, "__dlpack__()")
    if is_plain_host(memory):
        return as_array(memory, "uint8", None).__dlpack__(stream=stream, **options)
    raise _no_exporter(memory)


def _no_exporter(memory: Memory) -> MissingCapabilityError:
    return MissingCapabilityError(
        memory._pool.device, "DLPack", "copy to host memory with madl.copy()"
    )
