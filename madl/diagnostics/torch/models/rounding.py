"""How PyTorch rounds a request, and what it takes from the device for it."""

from madl.diagnostics.torch.models.settings import AllocatorSettings
from madl.sizes import align_up

MIB = 1 << 20
BLOCK_NBYTES = 512
"""Every size is a multiple of it, and none is smaller."""
SMALL_NBYTES = MIB
"""Requests up to it share small segments; larger ones have a pool of their own."""
SMALL_SEGMENT_NBYTES = 2 * MIB
LARGE_SEGMENT_NBYTES = 20 * MIB
"""Of requests below ``OWN_SEGMENT_NBYTES``."""
OWN_SEGMENT_NBYTES = 10 * MIB
SEGMENT_GRANULARITY = 2 * MIB


def block_nbytes(nbytes: int, settings: AllocatorSettings) -> int:
    """Return what a request takes of a segment.

    >>> block_nbytes(1200, AllocatorSettings())
    1536
    """
    if nbytes < BLOCK_NBYTES:
        return BLOCK_NBYTES
    divisions = settings.divisions_for(nbytes)
    if divisions > 1 and nbytes > BLOCK_NBYTES * divisions:
        return _next_division(nbytes, divisions)
    return align_up(nbytes, BLOCK_NBYTES)


def segment_nbytes(block: int) -> int:
    """Return what is taken from the device when no cached block fits."""
    if block <= SMALL_NBYTES:
        return SMALL_SEGMENT_NBYTES
    if block < OWN_SEGMENT_NBYTES:
        return LARGE_SEGMENT_NBYTES
    return align_up(block, SEGMENT_GRANULARITY)


def _next_division(nbytes: int, divisions: int) -> int:
    """Round up to the next of ``divisions`` equal steps between two powers of two."""
    power = 1 << (nbytes.bit_length() - 1)
    if power == nbytes:
        return nbytes
    step = max(power // divisions, 1)
    return power + align_up(nbytes - power, step)
