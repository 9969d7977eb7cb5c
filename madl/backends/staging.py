"""How a backend wants its large copies to and from host memory to be done."""

from collections.abc import Callable
from typing import NamedTuple


class Staging(NamedTuple):
    """What a backend's ``staging`` answers, where a direct copy is not the best.

    The content goes piece by piece through memory of ``device``, which the CPU and the
    backend reach; the backend copies one piece while the CPU copies another.
    """

    device: str
    """What the memory is taken from, by a pool: ``"cuda_pinned:0"``."""
    stream: object
    """Where the backend's copies are queued, so that they return early."""
    finish: Callable[[], object]
    """Returns when all that is queued there is done."""
